/** One side of the playground: which model, its answer, and what it took. */

import { Badge, Box, Card, Group, Loader, Select, Stack, Text, Tooltip } from "@mantine/core";
import type { ReactNode } from "react";
import { formatCount, formatMs } from "../../components/format";
import { ErrorState } from "../../components/states";
import classes from "./AnswerPane.module.css";
import { type Answer, isRunning, tokenRate } from "./useStream";

export interface ModelOption {
  value: string;
  label: string;
}

interface AnswerPaneProps {
  side: string;
  models: ModelOption[];
  model: string | null;
  onModel: (model: string | null) => void;
  answer: Answer;
}

export function AnswerPane({ side, models, model, onModel, answer }: AnswerPaneProps) {
  return (
    <Card p={0} component="section" aria-label={side} className={classes.pane}>
      <Box p="sm" className={classes.head}>
        <Select
          aria-label={`Model, ${side}`}
          data={models}
          value={model}
          onChange={onModel}
          allowDeselect={false}
          searchable
          nothingFoundMessage="No such model"
        />
      </Box>
      <Box p="md" className={classes.body}>
        <AnswerBody answer={answer} />
      </Box>
      <Box px="md" py="sm" className={classes.foot} mih={64}>
        <Measures answer={answer} />
      </Box>
    </Card>
  );
}

function AnswerBody({ answer }: { answer: Answer }) {
  if (answer.status === "idle")
    return (
      <Text c="dimmed" size="sm">
        The answer appears here.
      </Text>
    );
  return (
    <Stack gap="sm">
      {answer.status === "waiting" && <Loader type="dots" size="sm" aria-label="Waiting" />}
      {answer.text !== "" && (
        <Text
          size="sm"
          className={classes.text}
          data-testid="answer"
          aria-live="polite"
          aria-busy={isRunning(answer)}
        >
          {answer.text}
          {answer.status === "streaming" && <span className={classes.cursor} aria-hidden />}
        </Text>
      )}
      {answer.status === "done" && answer.text === "" && (
        <Text c="dimmed" size="sm">
          The model ended its answer at once.
        </Text>
      )}
      {answer.status === "stopped" && (
        <Text c="dimmed" size="sm">
          Stopped. What was generated is still charged.
        </Text>
      )}
      {answer.status === "failed" && <ErrorState error={answer.error} />}
    </Stack>
  );
}

const RESIDENCY: Record<string, { color: string; meaning: string }> = {
  device: { color: "teal", meaning: "The adapter was in device memory: nothing to load" },
  host: { color: "blue", meaning: "The adapter came from the engine's host memory" },
  shared: { color: "yellow", meaning: "The adapter came from the shared cache" },
  store: { color: "orange", meaning: "A cold start: the adapter came from the object store" },
};

function Measures({ answer }: { answer: Answer }) {
  const { headers, usage, ttftMs, totalMs, finish } = answer;
  const rate = tokenRate(answer);
  const residency = headers?.residency ? RESIDENCY[headers.residency] : undefined;
  return (
    <Stack gap={8}>
      <Group gap="md">
        <Measure label="First token" value={ttftMs === null ? null : formatMs(ttftMs)} />
        <Measure label="Total" value={totalMs === null ? null : formatMs(totalMs)} />
        <Measure label="Prompt" value={usage && promptTokens(usage)} />
        <Measure label="Output" value={usage && `${formatCount(usage.completion_tokens)} tokens`} />
        <Measure label="Rate" value={rate === null ? null : `${rate.toFixed(1)} / s`} />
      </Group>
      <Group gap={6} mih={22}>
        {headers?.adapter && (
          <Tooltip label={headers.digest} disabled={!headers.digest}>
            <Badge data-testid="adapter">{headers.adapter}</Badge>
          </Tooltip>
        )}
        {headers && !headers.adapter && <Badge color="gray">base model</Badge>}
        {headers?.residency && (
          <Tooltip label={residency?.meaning} disabled={!residency}>
            <Badge color={residency?.color ?? "gray"} data-testid="residency">
              from {headers.residency}
            </Badge>
          </Tooltip>
        )}
        {headers?.tier && <Badge color="gray">{headers.tier}</Badge>}
        {finish === "length" && <Badge color="yellow">cut at the token limit</Badge>}
      </Group>
    </Stack>
  );
}

function promptTokens(usage: NonNullable<Answer["usage"]>): string {
  const all = formatCount(usage.prompt_tokens);
  return usage.cached_tokens > 0 ? `${all} (${formatCount(usage.cached_tokens)} cached)` : all;
}

function Measure({ label, value }: { label: string; value: ReactNode }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {label}
      </Text>
      <Text size="sm" className="numbers" fw={500}>
        {value ?? "–"}
      </Text>
    </div>
  );
}
