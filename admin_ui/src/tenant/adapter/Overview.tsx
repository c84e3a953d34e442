/** The first tab: what serves now, what came and what it cost, aliases, and all versions. */

import { Anchor, Code, Group, SimpleGrid, Stack, Table, Text } from "@mantine/core";
import { Link } from "react-router";
import { Copyable } from "../../components/Copyable";
import { formatCompact, formatCount, formatDate } from "../../components/format";
import { Money } from "../../components/Money";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { Sparkline } from "../../components/Sparkline";
import { Stat } from "../../components/Stat";
import type { Adapter } from "../adapters/model";
import { adapterPath } from "./paths";
import { ServesNow } from "./ServesNow";
import type { TabProps } from "./tabs";
import { Versions } from "./Versions";

export default function Overview({ adapter }: TabProps) {
  return (
    <Stack>
      <ServesNow adapter={adapter} />
      <Traffic adapter={adapter} />
      <Aliases adapter={adapter} />
      <Versions adapter={adapter} />
    </Stack>
  );
}

function Traffic({ adapter: { name, traffic, month_costs } }: TabProps) {
  if (!traffic) return null;
  return (
    <SimpleGrid cols={{ base: 1, xs: 3 }}>
      <Stat
        label="Requests, last 24 h"
        value={
          <Group gap="md" wrap="nowrap" justify="space-between">
            <span>{formatCount(traffic.requests)}</span>
            {traffic.requests > 0 && (
              <Text span c="teal" w={110}>
                <Sparkline
                  values={traffic.requests_by_hour}
                  label={`Requests of ${name} by hour`}
                />
              </Text>
            )}
          </Group>
        }
        hint={`this hour and the 23 before it, since ${formatDate(traffic.start)}`}
      />
      <Stat
        label="Tokens, last 24 h"
        value={formatCompact(traffic.total_tokens)}
        title={formatCount(traffic.total_tokens)}
        hint={`${formatCount(traffic.prompt_tokens)} in (${formatCount(traffic.cached_tokens)} cached), ${formatCount(traffic.output_tokens)} out`}
      />
      <Stat
        label="Cost this month"
        value={month_costs && month_costs.length > 0 ? <Money of={month_costs} /> : "nothing yet"}
        hint="all versions, including storage and memory"
      />
    </SimpleGrid>
  );
}

function RollOut({ name }: { name: string }) {
  return (
    <Anchor component={Link} to={adapterPath(name, "rollout")} size="sm">
      Manage rollout
    </Anchor>
  );
}

function Aliases({ adapter }: { adapter: Adapter }) {
  const { name, aliases } = adapter;
  if (aliases.length === 0)
    return (
      <Panel title="Aliases" action={<RollOut name={name} />}>
        <Text size="sm" c="dimmed">
          No aliases. A request for <Code>{name}</Code> uses the newest active version;{" "}
          <Code>{name}@1</Code> selects one version.
        </Text>
      </Panel>
    );
  return (
    <Panel title="Aliases" padding="0" action={<RollOut name={name} />}>
      <Scrollable label="Adapter aliases">
        <Table aria-label="Aliases" miw={480}>
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Model name</Table.Th>
              <Table.Th>Points to</Table.Th>
              <Table.Th>Changed</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {aliases.map(({ alias, targets, shadow, updated_at }) => (
              <Table.Tr key={alias}>
                <Table.Td>
                  <Copyable value={`${name}@${alias}`} label={`${name}@${alias}`} />
                </Table.Td>
                <Table.Td>
                  {targets.map(({ version, weight }) => `v${version} ${weight} %`).join(", ")}
                  {shadow && (
                    <Text size="xs" c="dimmed">
                      {shadow.percent} % also sent to v{shadow.version} for comparison
                    </Text>
                  )}
                </Table.Td>
                <Table.Td>{formatDate(updated_at)}</Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Scrollable>
    </Panel>
  );
}
