/** Because of what a request waited, and for the operator because of whom. */

import { Group, Skeleton, Stack, Text } from "@mantine/core";
import { formatMs } from "../components/format";
import { type Side, useWaits, type WaitPart } from "./queries";

const CAUSES: Record<WaitPart["cause"], string> = {
  queue: "other requests were served",
  pages: "memory held by others",
  load: "adapter load",
  own: "the same tenant's requests were served",
  start: "scheduling (step in progress)",
  preempted: "preempted",
};

export function QueueCauses({ side, request }: { side: Side; request: string }) {
  const found = useWaits(side, request);
  if (found.isPending)
    return <Skeleton height={44} mt="sm" role="status" aria-label="Loading" data-loading />;
  const sequences = (found.data ?? []).filter(({ parts }) => parts !== null && parts.length > 0);
  if (sequences.length === 0) return null;
  return (
    <Stack gap={4} mt="sm">
      <Text size="sm" fw={550}>
        Causes of the queue time
      </Text>
      {sequences.map(({ sequence, parts }) => (
        <Group key={sequence} gap="md">
          {sequences.length > 1 && (
            <Text size="xs" c="dimmed">
              Sequence {sequence}
            </Text>
          )}
          {parts?.map((part) => (
            <Text key={`${part.cause} ${part.whose}`} size="sm">
              {CAUSES[part.cause]}
              {part.whose && ` (${part.whose})`}:{" "}
              <Text span fw={550} className="numbers">
                {formatMs(part.ms)}
              </Text>
            </Text>
          ))}
        </Group>
      ))}
    </Stack>
  );
}
