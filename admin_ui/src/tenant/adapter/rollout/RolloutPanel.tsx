import { Alert, Badge, Button, Group, Stack, Stepper, Table, Text } from "@mantine/core";
import { IconPlayerPause } from "@tabler/icons-react";
import { formatAgo, formatCount, formatDate } from "../../../components/format";
import { Panel } from "../../../components/Panel";
import { Scrollable } from "../../../components/Scrollable";
import { ErrorState } from "../../../components/states";
import { useStale } from "../../../live/stale";
import { type GuardLine, guardLines, type Rollout, stageText, targetsText } from "./model";
import type { AliasChanges } from "./queries";

interface RolloutPanelProps {
  rollout: Rollout;
  changes: AliasChanges;
  /** When it was read, in ms since the epoch. */
  readAt: number;
}

const STATES: Record<Rollout["state"], { color: string; text: string }> = {
  running: { color: "blue", text: "running" },
  completed: { color: "teal", text: "completed" },
  rolled_back: { color: "red", text: "rolled back automatically" },
  cancelled: { color: "gray", text: "cancelled" },
};

/** The roll-out that runs, or how the last one ended. */
export function RolloutPanel({ rollout, changes, readAt }: RolloutPanelProps) {
  const { state, version, stages, stage, held } = rollout;
  const { cancel, path } = changes;
  const stale = useStale(readAt);
  const isRunning = state === "running";
  return (
    <Panel
      title={isRunning ? `Rollout to version ${version}` : `Last rollout, to version ${version}`}
      note={`started by ${rollout.created_by}, ${formatDate(rollout.created_at)}; before: ${targetsText(rollout.before)}`}
      stale={isRunning ? stale : null}
      action={
        <Group gap="xs">
          <Badge color={STATES[state].color} data-testid="rollout-state">
            {STATES[state].text}
          </Badge>
          {isRunning && (
            <Button
              size="xs"
              color="red"
              variant="light"
              loading={cancel.isPending}
              onClick={() => cancel.mutate({ params: { path } })}
            >
              Cancel and roll back
            </Button>
          )}
        </Group>
      }
    >
      <Stack gap="sm">
        <Stepper active={state === "completed" ? stages.length : stage} size="xs" iconSize={26}>
          {stages.map((each) => (
            <Stepper.Step
              key={each.percent}
              label={`${each.percent}%`}
              description={stageText(each)}
            />
          ))}
        </Stepper>
        {isRunning && (
          <Text size="xs" c="dimmed">
            This stage started{" "}
            {formatAgo(Date.parse(rollout.stage_began_at) / 1000, Date.now() / 1000)}.
          </Text>
        )}
        {held && (
          <Alert color="yellow" icon={<IconPlayerPause size={18} />} title="Paused">
            {held}
          </Alert>
        )}
        {rollout.reason && <Text size="sm">{rollout.reason}</Text>}
        {cancel.error ? <ErrorState error={cancel.error} /> : null}
        <GuardTable rollout={rollout} />
      </Stack>
    </Panel>
  );
}

function GuardTable({ rollout }: { rollout: Rollout }) {
  const lines = guardLines(rollout);
  const { numbers, guard } = rollout;
  if (numbers === null)
    return (
      <Text size="sm" c="dimmed">
        {rollout.state === "running" ? "The metrics are not available at the moment." : ""}
      </Text>
    );
  const least = guard.min_requests ?? 0;
  return (
    <>
      <Scrollable label="New version compared with previous versions">
        <Table aria-label="Guard rails" verticalSpacing={6} miw={460}>
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Guard rail</Table.Th>
              <Table.Th ta="right">Version {rollout.version}</Table.Th>
              <Table.Th ta="right">Previous</Table.Th>
              <Table.Th ta="right">Limit</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            <Table.Tr>
              <Table.Td>Requests</Table.Td>
              <Table.Td ta="right">{formatCount(numbers.version.requests)}</Table.Td>
              <Table.Td ta="right">{formatCount(numbers.before.requests)}</Table.Td>
              <Table.Td ta="right">–</Table.Td>
            </Table.Tr>
            {lines.map((line) => (
              <GuardRow key={line.what} line={line} />
            ))}
          </Table.Tbody>
        </Table>
      </Scrollable>
      {rollout.state === "running" && numbers.version.requests < least && (
        <Text size="xs" c="dimmed">
          Not evaluated yet: {formatCount(numbers.version.requests)} of at least{" "}
          {formatCount(least)} requests.
        </Text>
      )}
    </>
  );
}

function GuardRow({ line }: { line: GuardLine }) {
  return (
    <Table.Tr>
      <Table.Td>{line.what}</Table.Td>
      <Table.Td ta="right" fw={line.isBeyond ? 700 : undefined}>
        {line.isBeyond ? `${line.version} (exceeded)` : line.version}
      </Table.Td>
      <Table.Td ta="right">{line.before}</Table.Td>
      <Table.Td ta="right">{line.limit}</Table.Td>
    </Table.Tr>
  );
}
