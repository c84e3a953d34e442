/** What each tenant was served beside what its weight gives it, by class. */

import { Badge, Table, Text } from "@mantine/core";
import { formatCompact, formatPart } from "../../components/format";
import { Scrollable } from "../../components/Scrollable";
import { TenantName } from "../../components/TenantName";
import { tenantColor } from "../../components/tenantColor";
import { type ClassFairness, formatSeconds } from "./model";
import classes from "./Shares.module.css";

export function Shares({ classes: found }: { classes: readonly ClassFairness[] }) {
  const served = found.filter(({ tenants }) => tenants.length > 0);
  if (served.length === 0) {
    return (
      <Text size="sm" c="dimmed" p="md">
        No requests were served in this period.
      </Text>
    );
  }
  return (
    <Scrollable label="Share of service by class and tenant">
      <Table horizontalSpacing="md" verticalSpacing={6} miw={820}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th scope="col" miw={110}>
              Class
            </Table.Th>
            <Table.Th scope="col">Tenant</Table.Th>
            <Table.Th scope="col" ta="right">
              Weight
            </Table.Th>
            <Table.Th scope="col" className={classes.wide}>
              Share of service
            </Table.Th>
            <Table.Th scope="col" ta="right">
              Served
            </Table.Th>
            <Table.Th scope="col" ta="right">
              Entitled
            </Table.Th>
            <Table.Th scope="col" ta="right">
              Tokens
            </Table.Th>
            <Table.Th scope="col" ta="right">
              Waited for others
            </Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {served.flatMap((each) =>
            each.tenants.map((share, index) => (
              <Table.Tr key={`${each.class} ${share.tenant_id}`}>
                <Table.Td>{index === 0 && <Badge color="gray">{each.class}</Badge>}</Table.Td>
                <Table.Td fw={550}>
                  <TenantName id={share.tenant_id} name={share.tenant_name} />
                </Table.Td>
                <Table.Td ta="right">{share.weight ?? "–"}</Table.Td>
                <Table.Td>
                  <Bar
                    part={share.service_share}
                    ideal={share.weight_share}
                    color={tenantColor(share.tenant_id)}
                  />
                </Table.Td>
                <Table.Td ta="right">{formatPart(share.service_share)}</Table.Td>
                <Table.Td ta="right">{formatPart(share.weight_share)}</Table.Td>
                <Table.Td ta="right">{formatCompact(share.service_tokens)}</Table.Td>
                <Table.Td ta="right">{formatSeconds(share.waited_s)}</Table.Td>
              </Table.Tr>
            )),
          )}
        </Table.Tbody>
      </Table>
    </Scrollable>
  );
}

/** The numbers beside it say the same. */
interface BarProps {
  part: number;
  ideal: number | null;
  color: string;
}

function Bar({ part, ideal, color }: BarProps) {
  return (
    <div className={classes.track} aria-hidden>
      <div className={classes.fill} style={{ width: `${part * 100}%`, background: color }} />
      {ideal !== null && <div className={classes.ideal} style={{ left: `${ideal * 100}%` }} />}
    </div>
  );
}
