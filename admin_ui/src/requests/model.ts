/** Filters of requests as the address has them, and a request's time as the parts of a waterfall. */

import type { Schemas } from "../api/client";
import type { paths } from "../api/schema";

export type RequestItem = Schemas["RequestItem"];
export type Receipt = Schemas["Receipt"];
export type Sequence = Schemas["_Sequence"];
export type Query = NonNullable<paths["/v1/requests"]["get"]["parameters"]["query"]>;

/** What the address may say, by the name it has there; all but time are the API's own. */
const TEXTS = ["adapter", "class", "api_key", "kind", "min_cost", "max_cost"] as const;
const NUMBERS = ["min_queue_ms", "min_ttft_ms", "min_duration_ms"] as const;
export const STATUSES = ["completed", "aborted", "failed"] as const;
export const SORTS = ["newest", "-queue", "-ttft", "-tpot", "-duration", "-cost"] as const;
export const FINISHES = ["stop", "length", "abort", "error"] as const;
export const SPANS_S = { "1h": 3_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000 } as const;
export type Span = keyof typeof SPANS_S;

/** Of the address; what it does not say, or says wrong, is not asked for. */
export function queryOf(params: URLSearchParams, nowS: number): Query {
  const q = params.get("q")?.trim();
  if (q) return { q };
  const query: Query = {};
  for (const name of TEXTS) {
    const value = params.get(name);
    if (value !== null && (value !== "" || name === "adapter")) query[name] = value;
  }
  for (const name of NUMBERS) {
    const value = Number(params.get(name));
    if (value > 0) query[name] = value;
  }
  query.status = oneOf(STATUSES, params.get("status"));
  query.finish_reason = oneOf(FINISHES, params.get("finish_reason"));
  query.sort = oneOf(SORTS, params.get("sort"));
  return { ...query, ...timesOf(params, nowS) };
}

function timesOf(params: URLSearchParams, nowS: number): Pick<Query, "start" | "end"> {
  const [start, end] = [Number(params.get("start")), Number(params.get("end"))];
  if (start > 0 && end > start) return { start: iso(start), end: iso(end) };
  const span = spanOf(params);
  return span === null ? {} : { start: iso(nowS - SPANS_S[span]) };
}

export function spanOf(params: URLSearchParams): Span | null {
  const value = params.get("range");
  return value !== null && value in SPANS_S ? (value as Span) : null;
}

export function oneOf<T extends string>(values: readonly T[], value: string | null): T | undefined {
  return values.find((each) => each === value);
}

function iso(seconds: number): string {
  return new Date(Math.floor(seconds) * 1000).toISOString();
}

/** What was asked for, by how the ids of its requests start. */
const KINDS: Record<string, string> = {
  chatcmpl: "chat",
  cmpl: "completion",
  embd: "embedding",
  msg: "message",
  resp: "response",
};

export const kindWord = (kind: string): string => KINDS[kind] ?? kind;

/** Of a receipt, which has its id alone: "embd_1" is of kind "embd". */
export const kindOf = (id: string): string => id.replace(/[_-].*$/, "");

/** How a request ended, in a word: an embedding has no output that could be cut off. */
export function endWord(status: string, reason: string, kind: string): string {
  if (status === "incomplete" || reason !== "length") return status;
  return kind === "embd" ? "embedded" : "max tokens";
}

export const SEGMENTS = ["Queue", "Adapter load", "Prefill", "Decode"] as const;
export type SegmentName = (typeof SEGMENTS)[number] | "Until the end";

export interface Segment {
  name: SegmentName;
  /** ms from when the request came, and how long. */
  fromMs: number;
  ms: number;
}

export interface Lane {
  sequence: number;
  fromMs: number;
  totalMs: number;
  segments: Segment[];
}

/**
 * The parts of each sequence's time, one after the other: their sum is its total. The receipt's queue
 * has the load of the adapter in it, which is shown apart; without a first token there is no prefill.
 */
export function lanesOf(receipt: Receipt): Lane[] {
  const began = receipt.sequences.map(
    ({ finished_at, times_ms }) => Date.parse(finished_at) - times_ms.total,
  );
  const first = Math.min(...began);
  return receipt.sequences.map(({ sequence, times_ms: times }, index) => {
    const fromMs = Math.max((began[index] ?? first) - first, 0);
    const load = Math.min(times.adapter_load, times.queue);
    const parts: [SegmentName, number][] = [
      ["Queue", times.queue - load],
      ["Adapter load", load],
    ];
    if (times.prefill !== null && times.decode !== null)
      parts.push(["Prefill", times.prefill], ["Decode", times.decode]);
    else parts.push(["Until the end", Math.max(times.total - times.queue, 0)]);
    let at = fromMs;
    const segments = parts.map(([name, ms]) => {
      const segment = { name, fromMs: at, ms };
      at += ms;
      return segment;
    });
    return { sequence, fromMs, totalMs: times.total, segments };
  });
}

/** When the slowest sequence ended, in ms from when the first one came; never 0. */
export function lengthOf(lanes: readonly Lane[]): number {
  return Math.max(...lanes.map(({ fromMs, totalMs }) => fromMs + totalMs), 0.001);
}

/** Milliseconds between two output tokens; null of fewer. */
export function tpotOf({ ttft_ms, duration_ms, output_tokens }: RequestItem): number | null {
  if (ttft_ms === null || output_tokens < 2) return null;
  return Math.max(duration_ms - ttft_ms, 0) / (output_tokens - 1);
}

/** Output tokens a second while it decoded; null where that says nothing. */
export function speedOf({ times_ms, tokens }: Sequence): number | null {
  if (!times_ms.decode || tokens.output < 2) return null;
  return ((tokens.output - 1) / times_ms.decode) * 1000;
}
