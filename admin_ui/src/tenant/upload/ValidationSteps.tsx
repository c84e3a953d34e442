import { Group, Loader, Stack, Text } from "@mantine/core";
import { IconCircle, IconCircleCheck, IconCircleX } from "@tabler/icons-react";
import type { VersionState } from "../adapters/model";

const STEPS = [
  { text: "Received and stored", from: "quarantined" },
  { text: "Waited in the queue", from: "validating" },
  { text: "Checked against the base model", from: "active" },
] as const;

const REACHED: Record<VersionState, number> = {
  quarantined: 1,
  validating: 2,
  active: 3,
  deprecated: 3,
  rejected: 3,
  revoked: 3,
};

/** How far the server is with a version, a line for each step. */
export function ValidationSteps({ state }: { state: VersionState }) {
  const reached = REACHED[state];
  const last =
    state === "rejected"
      ? "Rejected"
      : state === "revoked"
        ? "Revoked"
        : "Active: requests can use it";
  return (
    <Stack gap={2} role="status" aria-label="Validation">
      {STEPS.map(({ text }, at) => (
        <Step
          key={text}
          text={text}
          mark={at < reached ? "done" : at === reached ? "now" : "next"}
        />
      ))}
      {reached === STEPS.length && (
        <Step text={last} mark={state === "rejected" || state === "revoked" ? "bad" : "done"} />
      )}
    </Stack>
  );
}

const WORDS = { done: "done", now: "in progress", next: "pending", bad: "failed" };

function Step({ text, mark }: { text: string; mark: keyof typeof WORDS }) {
  return (
    <Group gap={6} wrap="nowrap" c={mark === "next" ? "dimmed" : undefined}>
      {mark === "done" && (
        <IconCircleCheck size={16} color="var(--mantine-color-teal-filled)" aria-hidden />
      )}
      {mark === "now" && <Loader size={14} aria-hidden />}
      {mark === "next" && <IconCircle size={16} aria-hidden />}
      {mark === "bad" && (
        <IconCircleX size={16} color="var(--mantine-color-red-filled)" aria-hidden />
      )}
      <Text size="xs">
        {text}
        <Text span hidden>
          {" "}
          ({WORDS[mark]})
        </Text>
      </Text>
    </Group>
  );
}
