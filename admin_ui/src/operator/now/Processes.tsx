import { Badge, Table, Text } from "@mantine/core";
import { formatCount, formatDate } from "../../components/format";
import { Scrollable } from "../../components/Scrollable";
import type { ProcessesNow } from "./model";

/** The processes that live, with what fails in them and how often their parts were started again. */
export function Processes({ now }: { now: ProcessesNow | null }) {
  const processes = now?.processes ?? [];
  const restarts = new Map<string, number>();
  for (const each of processes)
    for (const [part, count] of Object.entries(each.restarts))
      restarts.set(part, (restarts.get(part) ?? 0) + count);
  if (processes.length === 0)
    return (
      <Text size="sm" c="dimmed" p="md">
        {now === null ? "No process has reported yet." : "No process is known at the moment."}
      </Text>
    );
  return (
    <Scrollable label="Processes, table">
      <Table aria-label="Processes" miw={640} verticalSpacing={6} horizontalSpacing="md">
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Process</Table.Th>
            <Table.Th>Health</Table.Th>
            <Table.Th>Host</Table.Th>
            <Table.Th ta="right">PID</Table.Th>
            <Table.Th>Started</Table.Th>
            <Table.Th ta="right">Restarts</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {processes.map((each) => {
            const failing = Object.keys(each.outages);
            return (
              <Table.Tr key={each.id}>
                <Table.Td>{each.name}</Table.Td>
                <Table.Td>
                  <Badge color={failing.length === 0 ? "teal" : "red"}>
                    {failing.length === 0 ? "healthy" : `failing: ${failing.join(", ")}`}
                  </Badge>
                </Table.Td>
                <Table.Td>{each.host}</Table.Td>
                <Table.Td ta="right">{each.pid}</Table.Td>
                <Table.Td>{formatDate(each.started_at)}</Table.Td>
                <Table.Td ta="right">{formatCount(restarts.get(each.name) ?? 0)}</Table.Td>
              </Table.Tr>
            );
          })}
        </Table.Tbody>
      </Table>
    </Scrollable>
  );
}
