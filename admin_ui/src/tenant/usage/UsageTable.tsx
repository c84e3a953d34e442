import { Anchor, Card, Table, Text } from "@mantine/core";
import { Link } from "react-router";
import { formatCount } from "../../components/format";
import { Money } from "../../components/Money";
import { Scrollable } from "../../components/Scrollable";
import { GROUPS, type Group, type Result, type View } from "./model";

interface UsageTableProps {
  view: View;
  by: Group;
  addressOf: (filter: Record<string, string>) => string;
}

/** The chart's groups in numbers; each leads to its requests. */
export function UsageTable({ view, by, addressOf }: UsageTableProps) {
  const group = GROUPS.find(({ value }) => value === by)?.label ?? "";
  const name = by === "none" ? "Usage" : `Usage by ${group.toLowerCase()}`;
  return (
    <Card p={0}>
      <Scrollable label={`${name}, table`}>
        <Table miw={640} aria-label={name}>
          <Table.Thead>
            <Table.Tr>
              <Table.Th>{by === "none" ? "Usage" : group}</Table.Th>
              <Table.Th ta="right">Requests</Table.Th>
              <Table.Th ta="right">Uncached</Table.Th>
              <Table.Th ta="right">Cached</Table.Th>
              <Table.Th ta="right">Output</Table.Th>
              <Table.Th ta="right">Cost</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {view.rows.map((row) => (
              <Table.Tr key={row.key}>
                <Table.Td>
                  {row.filter === null || row.sums.requests === 0 ? (
                    <Text size="sm" c="dimmed">
                      {row.label}
                    </Text>
                  ) : (
                    <Anchor component={Link} to={addressOf(row.filter)} size="sm">
                      {row.label}
                    </Anchor>
                  )}
                </Table.Td>
                <Numbers of={row.sums} />
              </Table.Tr>
            ))}
          </Table.Tbody>
          {view.rows.length > 1 && (
            <Table.Tfoot>
              <Table.Tr fw={600}>
                <Table.Th>Total</Table.Th>
                <Numbers of={view.total} />
              </Table.Tr>
            </Table.Tfoot>
          )}
        </Table>
      </Scrollable>
    </Card>
  );
}

function Numbers({ of }: { of: Result }) {
  const costs = of.costs?.amounts ?? [];
  const unpriced = (of.costs?.unrated_events ?? 0) > 0 ? "not priced" : "–";
  return (
    <>
      <Table.Td ta="right">{formatCount(of.requests)}</Table.Td>
      <Table.Td ta="right">{formatCount(of.uncached_tokens)}</Table.Td>
      <Table.Td ta="right">{formatCount(of.cached_tokens)}</Table.Td>
      <Table.Td ta="right">{formatCount(of.output_tokens)}</Table.Td>
      <Table.Td ta="right">{costs.length > 0 ? <Money of={costs} /> : unpriced}</Table.Td>
    </>
  );
}
