/** One pane of the playground: which model, its answer, what it took and what it cost. */

import {
  ActionIcon,
  Anchor,
  Badge,
  Box,
  Card,
  Group,
  Loader,
  Stack,
  Text,
  Tooltip,
} from "@mantine/core";
import { IconX } from "@tabler/icons-react";
import type { ReactNode } from "react";
import { Link } from "react-router";
import { formatCount, formatMoney, formatMs } from "../../components/format";
import { Scrollable } from "../../components/Scrollable";
import { ErrorState } from "../../components/states";
import classes from "./AnswerPane.module.css";
import { ModelPicker } from "./ModelPicker";
import { useReceipt } from "./queries";
import { type Answer, isRunning, type Stream, tokenRate } from "./useStream";

interface AnswerPaneProps {
  name: string;
  model: string | null;
  onModel: (model: string) => void;
  onRemove?: () => void;
  stream: Stream;
}

export function AnswerPane({ name, model, onModel, onRemove, stream }: AnswerPaneProps) {
  const { answer, turns } = stream;
  const before = answer.status === "done" ? turns.slice(0, -1) : turns;
  return (
    <Card p={0} component="section" aria-label={name} className={classes.pane}>
      <Group p="sm" gap="xs" wrap="nowrap" className={classes.head}>
        <ModelPicker label={`Model of ${name.toLowerCase()}`} model={model} onModel={onModel} />
        {onRemove && (
          <ActionIcon
            variant="subtle"
            color="gray"
            aria-label={`Remove ${name.toLowerCase()}`}
            onClick={onRemove}
          >
            <IconX size={16} />
          </ActionIcon>
        )}
      </Group>
      <Scrollable label={`${name}, text`} className={classes.body}>
        {before.map(({ prompt, answer: said }, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: turns only grow
          <Stack key={index} gap={4} mb="sm">
            <Text size="xs" c="dimmed">
              {prompt}
            </Text>
            <Text size="sm" className={classes.text}>
              {said}
            </Text>
          </Stack>
        ))}
        <AnswerBody answer={answer} />
      </Scrollable>
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
        The response appears here.
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
          The model returned an empty response.
        </Text>
      )}
      {answer.status === "stopped" && (
        <Text c="dimmed" size="sm">
          Stopped. Tokens generated so far are billed.
        </Text>
      )}
      {answer.status === "failed" && <ErrorState error={answer.error} />}
    </Stack>
  );
}

const RESIDENCY: Record<string, { color: string; meaning: string }> = {
  device: { color: "teal", meaning: "The adapter was already in device memory" },
  host: { color: "blue", meaning: "The adapter was loaded from host memory" },
  shared: { color: "yellow", meaning: "The adapter was loaded from the shared cache" },
  store: { color: "orange", meaning: "Cold start: the adapter was loaded from the object store" },
};

const ENDED = ["done", "stopped"];

function Measures({ answer }: { answer: Answer }) {
  const { headers, usage, ttftMs, totalMs, finish } = answer;
  const rate = tokenRate(answer);
  const residency = headers?.residency ? RESIDENCY[headers.residency] : undefined;
  const requestId = headers?.requestId ?? null;
  const receipt = useReceipt(ENDED.includes(answer.status) ? requestId : null);
  // What was stopped has no usage of its own; its receipt says what was generated.
  const output = usage?.completion_tokens ?? receipt.data?.tokens.output;
  return (
    <Stack gap={8}>
      <Group gap="md">
        <Measure label="TTFT" value={ttftMs === null ? null : formatMs(ttftMs)} />
        <Measure label="Total" value={totalMs === null ? null : formatMs(totalMs)} />
        <Measure label="Prompt" value={usage && promptTokens(usage)} />
        <Measure
          label="Output"
          value={output === undefined ? null : `${formatCount(output)} tokens`}
        />
        <Measure label="Rate" value={rate === null ? null : `${rate.toFixed(1)} / s`} />
        <Measure label="Cost" value={costOf(receipt.data)} testId="cost" />
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
        {finish === "length" && <Badge color="yellow">stopped at the token limit</Badge>}
        {receipt.data && (
          <Anchor component={Link} to={`/requests/${receipt.data.id}`} size="xs">
            Receipt
          </Anchor>
        )}
      </Group>
    </Stack>
  );
}

function costOf(receipt: ReturnType<typeof useReceipt>["data"]): string | null {
  if (!receipt?.currency || receipt.amount === null) return receipt ? "not priced" : null;
  return formatMoney(receipt.amount, receipt.currency);
}

function promptTokens(usage: NonNullable<Answer["usage"]>): string {
  const all = formatCount(usage.prompt_tokens);
  return usage.cached_tokens > 0 ? `${all} (${formatCount(usage.cached_tokens)} cached)` : all;
}

interface MeasureProps {
  label: string;
  value: ReactNode;
  testId?: string;
}

function Measure({ label, value, testId }: MeasureProps) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {label}
      </Text>
      <Text size="sm" className="numbers" fw={500} data-testid={testId}>
        {value ?? "–"}
      </Text>
    </div>
  );
}
