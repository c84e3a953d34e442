/** How one was served: tokens by class, first tokens and the pace beside the promise, errors. */

import { Anchor, SimpleGrid, Skeleton, Text } from "@mantine/core";
import { Link } from "react-router";
import {
  formatCompact,
  formatCount,
  formatMs,
  formatPart,
  SEQUENCE_HELP,
} from "../../components/format";
import { Panel } from "../../components/Panel";
import type { Range } from "../../components/range";
import { ErrorState } from "../../components/states";
import { TimeSeries } from "../../components/TimeSeries";
import { useStale } from "../../live/stale";
import { rejectedOf } from "../../rejections/model";
import {
  type Answer,
  ERROR_COLORS,
  errorsOf,
  type Kept,
  kept,
  kindsOf,
  requestsOf,
  SERVICE,
  TOKENS,
  tokensByClass,
  totalOf,
} from "./model";
import { useServed } from "./queries";

const SYNC = "overview";

interface ServedProps {
  range: Range;
  /** What a chart is drawn of is listed elsewhere. */
  onOpen: (to: string) => void;
}

export function Served({ range, onOpen }: ServedProps) {
  const service = useServed(SERVICE, range.startS, range.endS);
  const tokens = useServed(TOKENS, range.startS, range.endS);
  const stale = useStale(service.dataUpdatedAt);
  const error = service.error ?? tokens.error;
  if (error && !(service.data && tokens.data))
    return <ErrorState error={error} onRetry={() => void service.refetch()} />;
  return (
    <SimpleGrid cols={{ base: 1, lg: 2 }} spacing="md">
      <Panel title="Tokens by class" note="Prompt and output tokens" stale={stale}>
        {!tokens.data && <Loading />}
        {tokens.data && (
          <TimeSeries
            label="Tokens by class"
            kind="bars"
            isStacked
            times={tokens.data.times}
            series={tokensByClass(tokens.data)}
            {...leading(onOpen, tokens.data, requestsOf)}
          />
        )}
      </Panel>
      <PromiseKept
        answer={service.data}
        metric="ttft"
        title="Time to first token (TTFT)"
        {...{ range, stale, onOpen }}
      />
      <PromiseKept
        answer={service.data}
        metric="tpot"
        title="Time per output token (TPOT)"
        {...{ range, stale, onOpen }}
      />
      <Errors answer={service.data} {...{ range, stale, onOpen }} />
    </SimpleGrid>
  );
}

type AddressOf = (startS: number, endS: number) => string;

/** A range that was drawn, or a step that was clicked, leads to what is behind it. */
function leading(onOpen: (to: string) => void, answer: Answer, addressOf: AddressOf) {
  return {
    onBrush: (startS: number, endS: number) => onOpen(addressOf(startS, endS)),
    onPick: (index: number) => {
      const startS = answer.times[index];
      if (startS !== undefined) onOpen(addressOf(startS, startS + answer.step_s));
    },
  };
}

interface ChartProps extends ServedProps {
  answer: Answer | undefined;
  stale: string | null;
}

interface PromiseProps extends ChartProps {
  metric: "ttft" | "tpot";
  title: string;
}

function PromiseKept({ answer, metric, title, range, stale, onOpen }: PromiseProps) {
  const met = answer && kept(answer, `${metric}_attainment`);
  const target = met?.targetMs;
  const slowest: AddressOf = (startS, endS) => requestsOf(startS, endS, `-${metric}`);
  return (
    <Panel
      title={title}
      note={met ? <span title={SEQUENCE_HELP}>{promiseOf(met)}</span> : "…"}
      stale={stale}
      action={
        <Anchor component={Link} to={slowest(range.startS, range.endS)} size="sm">
          Slowest requests
        </Anchor>
      }
    >
      {!answer && <Loading />}
      {answer && (
        <TimeSeries
          label={title}
          times={answer.times}
          series={kindsOf(answer, metric)}
          format={formatMs}
          target={target == null ? undefined : { value: target, label: `target ${target} ms` }}
          {...leading(onOpen, answer, slowest)}
          sync={SYNC}
        />
      )}
    </Panel>
  );
}

function promiseOf({ met, promised, targetMs }: Kept): string {
  if (promised === 0) return "Your plan has no target, or no requests finished in this period.";
  const target = targetMs === null ? "Target" : `Target ${formatMs(targetMs)}`;
  return `${target} met by ${formatCount(met)} of ${formatCount(promised)} sequences (${formatPart(met / promised)})`;
}

function Errors({ answer, range, stale, onOpen }: ChartProps) {
  const rejected: AddressOf = (startS, endS) => rejectedOf("/rejected", { startS, endS });
  const answers = answer && totalOf(answer, "answers");
  const errors = answer && errorsOf(answer);
  const note =
    errors == null || answers == null
      ? "No inference calls in this period."
      : `${formatCount(errors)} of ${formatCount(answers)} inference calls (${formatPart(answers === 0 ? null : errors / answers)})`;
  return (
    <Panel
      title="Errors by status"
      note={answer ? note : "…"}
      stale={stale}
      action={
        <Anchor component={Link} to={rejected(range.startS, range.endS)} size="sm">
          Rejected calls
        </Anchor>
      }
    >
      {!answer && <Loading />}
      {answer && errors === 0 && answers !== null && (
        <Text size="sm" c="dimmed">
          No errors in this period.
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
          {...leading(onOpen, answer, rejected)}
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
