/** What the Now page makes of the live events and of the last hour: figures, shapes, what is wrong. */

import type { Schemas } from "../../api/client";
import {
  formatCompact,
  formatCount,
  formatMs,
  formatPart,
  SEQUENCE_HELP,
} from "../../components/format";

export type Answer = Schemas["TimeSeriesAnswer"];
export type Line = Schemas["TimeSeries"];
export type Probing = Schemas["ProbingView"];
export type Process = Schemas["ProcessView"];

/** The live event `engine`. */
export interface EngineNow {
  at: number;
  ready: boolean;
  reason: string | null;
  /** While it is not ready: since when. */
  sinceS: number | null;
  running: number;
  waiting: number;
  oldestS: Record<string, number>;
  /** Whose the oldest is, by class; "": of one that is not told apart. */
  oldestOf: Record<string, string>;
  waitingBy: Record<string, number>;
  outputPerS: number | null;
  pages: Record<string, number>;
  adapters: Record<string, number>;
  stepMs: number;
}

/** The live event `processes`. */
export interface ProcessesNow {
  known: boolean;
  processes: Process[];
  warnings: Told[];
  /** By "<id of the process> <work>", or "redis": since when it fails. */
  sinceS: Record<string, number>;
}

/** A warning of the server's; `about` says where it is to be looked at. */
export interface Told {
  about: string;
  text: string;
  sinceS: number | null;
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null;
const number = (value: unknown): number => (typeof value === "number" ? value : 0);

function numbers(value: unknown): Record<string, number> {
  if (!isRecord(value)) return {};
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, number(each)]));
}

function texts(value: unknown): Record<string, string> {
  if (!isRecord(value)) return {};
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, String(each)]));
}

export function readEngine(data: unknown): EngineNow | null {
  if (!isRecord(data) || typeof data.ready !== "boolean") return null;
  const rate = data.output_tokens_per_s;
  return {
    at: number(data.at),
    ready: data.ready,
    reason: typeof data.reason === "string" ? data.reason : null,
    sinceS: typeof data.since === "number" ? data.since : null,
    running: number(data.running),
    waiting: number(data.waiting),
    oldestS: numbers(data.oldest_wait_s_by_class),
    oldestOf: texts(data.oldest_wait_tenant_by_class),
    waitingBy: numbers(data.waiting_by_class),
    outputPerS: typeof rate === "number" ? rate : null,
    pages: numbers(data.pool),
    adapters: numbers(data.adapters),
    stepMs: number(data.last_step_ms),
  };
}

/** The last time that it served. */
export function readServing(data: unknown): EngineNow | null {
  const read = readEngine(data);
  return read?.ready ? read : null;
}

export function readProcesses(data: unknown): ProcessesNow | null {
  if (!isRecord(data) || !Array.isArray(data.processes) || !Array.isArray(data.warnings))
    return null;
  return {
    known: data.known === true,
    processes: data.processes as Process[],
    warnings: data.warnings.filter(isRecord).map(({ about, text, since }) => ({
      about: String(about),
      text: String(text),
      sinceS: typeof since === "number" ? since : null,
    })),
    sinceS: numbers(data.since),
  };
}

/** One figure of the page, with its last hour. */
export interface Figure {
  key: string;
  label: string;
  value: string;
  hint: string;
  /** What the hint's words mean. */
  help?: string;
  values: (number | null)[];
  tone?: "good" | "fair" | "bad";
}

export const linesOf = (answer: Answer | undefined, metric: string): Line[] =>
  answer?.series.filter((line) => line.metric === metric) ?? [];

/** Lines of one metric added up; null where none of them knows. */
export function summed(lines: readonly Line[], length: number): (number | null)[] {
  return Array.from({ length }, (_, at) => {
    const known = lines.map(({ values }) => values[at] ?? null).filter((value) => value !== null);
    return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0);
  });
}

/** Without the minute that still runs, whose count is not whole. */
const whole = (values: (number | null)[]): (number | null)[] => values.slice(0, -1);
const last = (values: readonly (number | null)[]): number | null =>
  values.findLast((value) => value !== null) ?? null;
export const total = (values: readonly (number | null)[]): number =>
  values.reduce<number>((sum, value) => sum + (value ?? 0), 0);

export function throughput(answer: Answer | undefined, engine: EngineNow | null): Figure {
  const perS = (metric: string) =>
    whole(summed(linesOf(answer, metric), answer?.times.length ?? 0)).map((value) =>
      value === null ? null : value / (answer?.step_s ?? 60),
    );
  const output = perS("output_tokens");
  const now = engine?.outputPerS ?? null;
  const prompts = last(perS("prompt_tokens"));
  return {
    key: "throughput",
    label: "Output throughput",
    value: engine === null ? "–" : `${formatCompact(now ?? 0)} tok/s`,
    hint:
      prompts === null
        ? "prompt throughput unknown"
        : `${formatCompact(prompts)} tok/s prompt throughput`,
    values: output,
  };
}

export function queue(answer: Answer | undefined, engine: EngineNow | null): Figure {
  const waits = Object.entries(engine?.oldestS ?? {});
  const oldest = Math.max(0, ...waits.map(([, seconds]) => seconds));
  const name = waits.find(([, seconds]) => seconds === oldest)?.[0];
  return {
    key: "queue",
    label: "Longest queue wait",
    value: engine === null ? "–" : oldest === 0 ? "none" : formatMs(oldest * 1000),
    hint:
      engine === null
        ? "unknown"
        : `${formatCount(engine.waiting)} waiting${name && oldest > 0 ? `, longest in ${name}` : ""}`,
    values: linesOf(answer, "oldest_wait")[0]?.values ?? [],
    tone: oldest > LONG_WAIT_S ? "bad" : undefined,
  };
}

export function running(answer: Answer | undefined, engine: EngineNow | null): Figure {
  return {
    key: "running",
    label: "Running sequences",
    value: engine === null ? "–" : formatCount(engine.running),
    hint: engine === null ? "unknown" : `last step ${formatMs(engine.stepMs)}`,
    values: linesOf(answer, "running")[0]?.values ?? [],
  };
}

export function errors(answer: Answer | undefined): Figure {
  const lines = linesOf(answer, "errors");
  const ours = lines.filter(({ kind }) => (kind ?? "") >= "500");
  const length = answer?.times.length ?? 0;
  const all = summed(linesOf(answer, "answers"), length);
  const wrong = summed(lines, length);
  const server = total(summed(ours, length));
  return {
    key: "errors",
    label: "Error responses",
    value: answer === undefined ? "–" : formatCount(total(wrong)),
    hint: `of ${formatCount(total(all))} responses, ${formatCount(server)} of them 5xx`,
    values: wrong,
    tone: server > 0 ? "bad" : undefined,
  };
}

export function loads(answer: Answer | undefined, engine: EngineNow | null): Figure {
  const lines = linesOf(answer, "adapter_loads");
  const length = answer?.times.length ?? 0;
  const each = lines.map(({ kind, values }) => `${formatCount(total(values))} from ${kind}`);
  return {
    key: "loads",
    label: "Adapters loading",
    value: engine === null ? "–" : formatCount(engine.adapters.loading ?? 0),
    hint: each.length === 0 ? "no loads in the last hour" : `last hour: ${each.join(", ")}`,
    values: summed(lines, length),
  };
}

export function memory(answer: Answer | undefined, engine: EngineNow | null): Figure {
  const free =
    engine === null ? null : (engine.pages.free ?? 0) / Math.max(1, engine.pages.total ?? 0);
  const line = linesOf(answer, "pool").find(({ kind }) => kind === "free");
  return {
    key: "memory",
    label: "Free pages",
    value: free === null ? "–" : formatPart(free),
    hint:
      engine === null
        ? "unknown"
        : `${formatCount(engine.pages.free ?? 0)} of ${formatCount(engine.pages.total ?? 0)}`,
    values: line?.values ?? [],
  };
}

/** Work of the platform's own beside requests: asking new adapters for their reports. */
export function probing(view: Probing): Figure {
  return {
    key: "probing",
    label: "Adapters to probe",
    value: formatCount(view.waiting),
    hint: view.summary,
    values: [],
  };
}

export const TARGETS = {
  ttft_attainment: "TTFT in target",
  tpot_attainment: "TPOT in target",
} as const;

/** One figure for each class that promises something, of the last hour. */
export function attainment(answer: Answer | undefined): Figure[] {
  return (Object.keys(TARGETS) as (keyof typeof TARGETS)[]).flatMap((metric) =>
    linesOf(answer, metric)
      .filter(({ promised }) => total(promised ?? []) > 0)
      .sort((one, other) => (one.service_class ?? "").localeCompare(other.service_class ?? ""))
      .map((line) => {
        const [met, promised] = [total(line.met ?? []), total(line.promised ?? [])];
        return {
          key: `${metric} ${line.service_class}`,
          label: `${TARGETS[metric]}, ${line.service_class}`,
          value: formatPart(met / promised),
          hint: `${formatCount(met)} of ${formatCount(promised)} sequences${targetOf(line)}`,
          help: SEQUENCE_HELP,
          values: line.values,
          tone: toneOf(met / promised),
        };
      }),
  );
}

export const targetOf = ({ target_ms }: Line): string =>
  target_ms === null || target_ms === undefined ? "" : `, target ${formatMs(target_ms)}`;

export function toneOf(part: number): "good" | "fair" | "bad" {
  if (part >= 0.99) return "good";
  return part >= 0.9 ? "fair" : "bad";
}

/** Longer than this, somebody waits too long. */
export const LONG_WAIT_S = 10;
