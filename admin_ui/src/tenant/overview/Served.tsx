/** How one was served: tokens by class, first tokens and the pace beside the promise, errors. */

import { SimpleGrid, Skeleton, Text } from "@mantine/core";
import { formatCompact, formatCount, formatMs, formatPart } from "../../components/format";
import { Panel } from "../../components/Panel";
import type { Range } from "../../components/range";
import { ErrorState } from "../../components/states";
import { TimeSeries } from "../../components/TimeSeries";
import { useStale } from "../../live/stale";
import {
  type Answer,
  ERROR_COLORS,
  type Kept,
  kept,
  kindsOf,
  SERVICE,
  TOKENS,
  tokensByClass,
  totalOf,
} from "./model";
import { useServed } from "./queries";

const SYNC = "overview";

interface ServedProps {
  range: Range;
  /** A range that was drawn leads to its requests. */
  onBrush: (startS: number, endS: number) => void;
}

export function Served({ range, onBrush }: ServedProps) {
  const service = useServed(SERVICE, range.startS, range.endS);
  const tokens = useServed(TOKENS, range.startS, range.endS);
  const stale = useStale(service.dataUpdatedAt);
  const error = service.error ?? tokens.error;
  if (error && !(service.data && tokens.data))
    return <ErrorState error={error} onRetry={() => void service.refetch()} />;
  return (
    <SimpleGrid cols={{ base: 1, lg: 2 }} spacing="md">
      <Panel title="Tokens by class" note="Prompt and output together" stale={stale}>
        {!tokens.data && <Loading />}
        {tokens.data && (
          <TimeSeries
            label="Tokens by class"
            kind="bars"
            isStacked
            times={tokens.data.times}
            series={tokensByClass(tokens.data)}
            onBrush={onBrush}
          />
        )}
      </Panel>
      <PromiseKept
        answer={service.data}
        metric="ttft"
        title="Time to first token (TTFT)"
        {...{ stale, onBrush }}
      />
      <PromiseKept
        answer={service.data}
        metric="tpot"
        title="Time per output token (TPOT)"
        {...{ stale, onBrush }}
      />
      <Errors answer={service.data} stale={stale} />
    </SimpleGrid>
  );
}

interface PromiseProps {
  answer: Answer | undefined;
  metric: "ttft" | "tpot";
  title: string;
  stale: string | null;
  onBrush: (startS: number, endS: number) => void;
}

function PromiseKept({ answer, metric, title, stale, onBrush }: PromiseProps) {
  const met = answer && kept(answer, `${metric}_attainment`);
  const target = met?.targetMs;
  return (
    <Panel title={title} note={met ? promiseOf(met) : "…"} stale={stale}>
      {!answer && <Loading />}
      {answer && (
        <TimeSeries
          label={title}
          times={answer.times}
          series={kindsOf(answer, metric)}
          format={formatMs}
          target={target == null ? undefined : { value: target, label: `target ${target} ms` }}
          onBrush={onBrush}
          sync={SYNC}
        />
      )}
    </Panel>
  );
}

function promiseOf({ met, promised, targetMs }: Kept): string {
  if (promised === 0) return "Your plan has no target, or no request ended in this time.";
  const target = targetMs === null ? "Target" : `Target ${formatMs(targetMs)}`;
  return `${target} met by ${formatCount(met)} of ${formatCount(promised)} requests (${formatPart(met / promised)})`;
}

function Errors({ answer, stale }: { answer: Answer | undefined; stale: string | null }) {
  const errors = answer && totalOf(answer, "errors");
  const answers = answer && totalOf(answer, "answers");
  const note =
    errors == null || answers == null
      ? "Nothing was answered in this time."
      : `${formatCount(errors)} of ${formatCount(answers)} answers (${formatPart(answers === 0 ? null : errors / answers)})`;
  return (
    <Panel title="Errors by status" note={answer ? note : "…"} stale={stale}>
      {!answer && <Loading />}
      {answer && errors === 0 && answers !== null && (
        <Text size="sm" c="dimmed">
          None in this time.
        </Text>
      )}
      {answer && errors !== 0 && errors !== null && (
        <TimeSeries
          label="Errors by status"
          kind="bars"
          isStacked
          times={answer.times}
          series={kindsOf(answer, "errors", ERROR_COLORS)}
          format={formatCompact}
          sync={SYNC}
        />
      )}
    </Panel>
  );
}

/** As high as a chart with its legend. */
function Loading() {
  return <Skeleton height={226} radius="sm" role="status" aria-label="Loading" />;
}
