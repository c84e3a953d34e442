import { Alert, Badge, Group, Stack, Table, Text } from "@mantine/core";
import type { Schemas } from "../../api/client";
import { formatCount, formatDate, formatMs } from "../../components/format";
import { ErrorState, TableSkeleton } from "../../components/states";
import { TenantOf } from "../TenantOf";
import {
  kindWords,
  layersOf,
  type Run,
  scopeWords,
  secondsOf,
  VERDICTS,
  verdictOf,
  waitingWords,
} from "./model";
import { useOneRun } from "./queries";

export function RunBadge({ run }: { run: Run }) {
  const { color, label } = VERDICTS[verdictOf(run)];
  return <Badge color={color}>{label}</Badge>;
}

/** One run: what it looked at, what it found, and what to do about it. */
export function RunDetails({ id }: { id: string }) {
  const found = useOneRun(id);
  if (found.error && !found.data)
    return <ErrorState error={found.error} onRetry={() => found.refetch()} />;
  if (!found.data) return <TableSkeleton />;
  const run = found.data;
  const seconds = secondsOf(run);
  const waits = waitingWords(run.waiting);
  return (
    <Stack>
      <Text size="sm">
        {scopeWords(run)}, started by {run.asked_by} {formatDate(run.asked_at)}
        {seconds === null ? "." : `; duration ${formatMs(seconds * 1000)}.`}
      </Text>
      <div role="status">
        <RunBadge run={run} />
      </div>
      {run.error && (
        <Alert color="red" title="The comparison failed">
          {run.error}
        </Alert>
      )}
      {verdictOf(run) === "underway" && (
        <Text size="sm" c="dimmed">
          A worker is running the comparison. This page updates automatically.
        </Text>
      )}
      {waits && (
        <Alert color="yellow" title="In progress, not counted as differences">
          {waits}
        </Alert>
      )}
      {Object.keys(run.differences).length > 0 && <Counts of={run.differences} />}
      {run.named.map((each) => (
        <Finding key={`${each.kind} ${each.subject} ${each.day}`} finding={each} />
      ))}
      {run.looked && <Looked of={run.looked} />}
    </Stack>
  );
}

function Counts({ of }: { of: Run["differences"] }) {
  return (
    <Table aria-label="Differences by kind" verticalSpacing={4}>
      <Table.Thead>
        <Table.Tr>
          <Table.Th>Difference</Table.Th>
          <Table.Th ta="right">Count</Table.Th>
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {Object.entries(of).map(([kind, count]) => (
          <Table.Tr key={kind}>
            <Table.Td>{kindWords(kind)}</Table.Td>
            <Table.Td ta="right">{formatCount(count)}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}

function Finding({ finding }: { finding: Schemas["Difference"] }) {
  const { kind, subject, tenant_id, day, expected, found, advice } = finding;
  return (
    <Alert color="red" title={kindWords(kind)}>
      <Stack gap={4}>
        <Text size="sm" ff="monospace">
          {subject}
        </Text>
        {(tenant_id ?? day) && (
          <Group gap="xs" fz="xs">
            {tenant_id && <TenantOf id={tenant_id} />}
            {day}
          </Group>
        )}
        <Text size="sm">
          Expected {expected}, found {found}.
        </Text>
        {advice && (
          <Text size="sm" fw={550}>
            {advice}
          </Text>
        )}
      </Stack>
    </Alert>
  );
}

function Looked({ of }: { of: Schemas["Looked"] }) {
  return (
    <Table aria-label="What was compared" verticalSpacing={4}>
      <Table.Thead>
        <Table.Tr>
          <Table.Th>Layer</Table.Th>
          <Table.Th ta="right">Rows compared</Table.Th>
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {layersOf(of).map(({ label, count }) => (
          <Table.Tr key={label}>
            <Table.Td>{label}</Table.Td>
            <Table.Td ta="right">{formatCount(count)}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}
