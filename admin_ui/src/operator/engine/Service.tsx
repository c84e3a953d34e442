/** How requests are served: what was promised and met, and what waits, by class and by tenant. */

import { Card, Table, Title } from "@mantine/core";
import type { Schemas } from "../../api/client";
import { formatCount, formatMs, formatPart, shortDigest } from "../../components/format";

interface ServiceProps {
  classes: Schemas["ClassService"][];
  tenants: Schemas["TenantService"][];
}

export function Service({ classes, tenants }: ServiceProps) {
  return (
    <Card>
      <Title order={2} mb="sm">
        Service
      </Title>
      <Table.ScrollContainer minWidth={640} type="native">
        <ServiceTable
          name="Service by class"
          rows={classes.map((view) => ({ key: view.service_class, label: "all", view }))}
        />
        {tenants.length > 0 && (
          <ServiceTable
            name="Service by tenant"
            rows={tenants.map((view) => ({
              key: `${view.tenant_id} ${view.service_class}`,
              label: view.name ?? (view.tenant_id ? shortDigest(view.tenant_id) : "all others"),
              view,
            }))}
          />
        )}
      </Table.ScrollContainer>
    </Card>
  );
}

interface ServiceTableProps {
  name: string;
  rows: { key: string; label: string; view: Schemas["ClassService"] | Schemas["TenantService"] }[];
}

function ServiceTable({ name, rows }: ServiceTableProps) {
  return (
    <Table aria-label={name} layout="fixed" horizontalSpacing="xs" verticalSpacing={6} mb="md">
      <Table.Thead>
        <Table.Tr>
          <Table.Th>Tenant</Table.Th>
          <Table.Th>Class</Table.Th>
          <Table.Th ta="right">Finished</Table.Th>
          <Table.Th ta="right">TTFT met</Table.Th>
          <Table.Th ta="right">TPOT met</Table.Th>
          <Table.Th ta="right">Waiting</Table.Th>
          <Table.Th ta="right">Longest wait</Table.Th>
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {rows.map(({ key, label, view }) => (
          <Table.Tr key={key}>
            <Table.Td>{label}</Table.Td>
            <Table.Td>{view.service_class}</Table.Td>
            <Table.Td ta="right">{formatCount(view.finished)}</Table.Td>
            <Table.Td ta="right">{formatPart(view.ttft_attainment)}</Table.Td>
            <Table.Td ta="right">{formatPart(view.tpot_attainment)}</Table.Td>
            <Table.Td ta="right">{formatCount(view.waiting)}</Table.Td>
            <Table.Td ta="right">
              {view.oldest_wait_s === null ? "" : formatMs(view.oldest_wait_s * 1000)}
            </Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}
