import { Code, Table, Text } from "@mantine/core";
import type { UseQueryResult } from "@tanstack/react-query";
import type { Schemas } from "../../../api/client";
import { formatDate } from "../../../components/format";
import { Panel } from "../../../components/Panel";
import { Scrollable } from "../../../components/Scrollable";
import { ErrorState } from "../../../components/states";
import { actionText, targetsText } from "./model";

interface HistoryPanelProps {
  history: UseQueryResult<Schemas["AliasChange"][], Error>;
}

/** Every change: from what to what, by whom, when and why. */
export function HistoryPanel({ history }: HistoryPanelProps) {
  const changes = history.data ?? [];
  return (
    <Panel title="History" padding="0">
      {history.error && !history.data && <ErrorState error={history.error} />}
      {history.data && changes.length === 0 && (
        <Text size="sm" c="dimmed" px="md" pb="md">
          No changes yet. Changes of this alias appear here.
        </Text>
      )}
      {changes.length > 0 && (
        <Scrollable label="Alias changes">
          <Table aria-label="Alias changes" verticalSpacing={7} miw={760}>
            <Table.Thead>
              <Table.Tr>
                <Table.Th>Time</Table.Th>
                <Table.Th>Change</Table.Th>
                <Table.Th>From</Table.Th>
                <Table.Th>To</Table.Th>
                <Table.Th>By</Table.Th>
                <Table.Th>Why</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {changes.map((change) => (
                <Table.Tr key={change.id}>
                  <Table.Td>{formatDate(change.at)}</Table.Td>
                  <Table.Td>{actionText(change.action)}</Table.Td>
                  <Table.Td>{targetsText(change.before?.targets)}</Table.Td>
                  <Table.Td>{targetsText(change.after?.targets)}</Table.Td>
                  <Table.Td>
                    <Code>{change.actor}</Code>
                  </Table.Td>
                  <Table.Td>{change.reason ?? ""}</Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </Scrollable>
      )}
    </Panel>
  );
}
