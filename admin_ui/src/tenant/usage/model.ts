/** Windows of usage, and the answer to one as series, rows and a file. Every sum is the server's. */

import type { Schemas } from "../../api/client";
import { formatCount } from "../../components/format";
import type { Series } from "../../components/series";

export type Bucket = Schemas["UsageBucket"];
export type Result = Schemas["UsageResult"];
export type Answer = Schemas["UsagePage"];

export const GROUPS = [
  { value: "adapter", label: "Adapter" },
  { value: "adapter_version", label: "Version" },
  { value: "api_key", label: "Key" },
  { value: "tier", label: "Class" },
  { value: "kind", label: "Kind" },
  { value: "model", label: "Model" },
  { value: "none", label: "None" },
] as const;
export type Group = (typeof GROUPS)[number]["value"];

export const MEASURES = [
  { value: "cost", label: "Cost" },
  { value: "tokens", label: "Tokens" },
  { value: "requests", label: "Requests" },
] as const;
export type Measure = (typeof MEASURES)[number]["value"];

/** So many groups have a colour of their own; the rest is one. */
export const TOP = 8;
export const BASE_MODEL = "base model";
const DAY_S = 86_400;

/** Whole hours or days (UTC), in unix seconds. */
export interface Window {
  startS: number;
  endS: number;
  bucket: "1h" | "1d";
}

export const SPANS = {
  "24h": "Last 24 hours",
  "7d": "Last 7 days",
  "30d": "Last 30 days",
} as const;
export type Span = keyof typeof SPANS;

/** "24h", "7d", "30d" or a month such as "2026-11"; anything else is this month. */
export function windowOf(period: string | null, nowS: number): Window {
  const hour = Math.floor(nowS / 3600) * 3600 + 3600;
  if (period === "24h") return { startS: hour - DAY_S, endS: hour, bucket: "1h" };
  const tomorrow = Math.floor(nowS / DAY_S) * DAY_S + DAY_S;
  const days = period === "7d" ? 7 : period === "30d" ? 30 : null;
  if (days !== null) return { startS: tomorrow - days * DAY_S, endS: tomorrow, bucket: "1d" };
  const month = /^(\d{4})-(0[1-9]|1[0-2])$/.exec(period ?? "");
  const now = new Date(nowS * 1000);
  const year = month ? Number(month[1]) : now.getUTCFullYear();
  const index = month ? Number(month[2]) - 1 : now.getUTCMonth();
  return {
    startS: Date.UTC(year, index, 1) / 1000,
    endS: Date.UTC(year, index + 1, 1) / 1000,
    bucket: "1d",
  };
}

/** The month that it is and those before it, newest first: what a page offers. */
export function months(nowS: number, count: number): { value: string; label: string }[] {
  const now = new Date(nowS * 1000);
  return Array.from({ length: count }, (_, ago) => {
    const month = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - ago, 1));
    return {
      value: month.toISOString().slice(0, 7),
      label: month.toLocaleString("en-GB", { month: "long", year: "numeric", timeZone: "UTC" }),
    };
  });
}

/** A group over the whole window. */
export interface Row {
  key: string;
  label: string;
  sums: Result;
  /** What leads to the requests behind it; null: nothing does, as for many groups together. */
  filter: Record<string, string> | null;
}

export interface View {
  times: number[];
  rows: Row[];
  total: Result;
  /** One chart, or of money one for each currency (of which the key is the name). */
  charts: { key: string; series: Series[] }[];
}

export const COLORS = [
  "light-dark(#1f8176, #4cb5a7)",
  "light-dark(#3b6fd4, #6f9cf0)",
  "light-dark(#d9822b, #f0a458)",
  "light-dark(#8b55c4, #b48be6)",
  "light-dark(#c2a100, #e3c84a)",
  "light-dark(#c94a6a, #ec7f99)",
  "light-dark(#2b9bb8, #5cc6e0)",
  "light-dark(#7a8b2f, #aec05a)",
] as const;
export const OTHER_COLOR = "light-dark(#a8b0b9, #6b727b)";

/** What a group is called, and how its requests are found. */
export function named(result: Result, by: Group, keys: ReadonlyMap<string, string>) {
  const of = (label: string, filter: Row["filter"]) => ({ label, filter });
  if (result.others !== null && result.others !== undefined)
    return of(`${formatCount(result.others)} others`, null);
  switch (by) {
    case "adapter":
      return result.adapter
        ? of(result.adapter, { adapter: result.adapter })
        : of(BASE_MODEL, { adapter: "" });
    case "adapter_version": {
      if (!result.adapter) return of(BASE_MODEL, { adapter: "" });
      const version = `${result.adapter}@${result.adapter_version}`;
      return of(version, { adapter: version });
    }
    case "api_key": {
      if (!result.api_key_id) return of("no API key", null);
      const id = result.api_key_id;
      return of(keys.get(id) ?? id, { api_key: id });
    }
    case "tier":
      return result.tier ? of(result.tier, { class: result.tier }) : of("no class", null);
    case "kind":
      return result.kind ? of(result.kind, { kind: result.kind }) : of("unknown", null);
    case "model":
      return of(result.model ?? "unknown", null);
    case "none":
      return of("All", {});
  }
}

export function viewOf(
  { data, groups, total }: Pick<Answer, "data" | "groups" | "total">,
  by: Group,
  measure: Measure,
  keys: ReadonlyMap<string, string> = new Map(),
): View {
  const rows = groups.map((sums) => rowOf(sums, by, keys));
  return {
    times: data.map(({ start }) => Date.parse(start) / 1000),
    rows,
    total,
    charts: chartsOf(data, rows, total, by, measure, keys),
  };
}

function rowOf(sums: Result, by: Group, keys: ReadonlyMap<string, string>): Row {
  const { label, filter } = named(sums, by, keys);
  return { key: JSON.stringify([label, filter]), label, filter, sums };
}

function chartsOf(
  buckets: readonly Bucket[],
  rows: readonly Row[],
  total: Result,
  by: Group,
  measure: Measure,
  keys: ReadonlyMap<string, string>,
): View["charts"] {
  if (measure === "tokens" && by === "none")
    return [{ key: "Tokens", series: tokenSeries(buckets) }];
  const at = (row: Row, read: (result: Result) => number) =>
    buckets.map(({ results }) =>
      results
        .filter((result) => rowOf(result, by, keys).key === row.key)
        .reduce((sum, result) => sum + read(result), 0),
    );
  const series = (read: (result: Result) => number): Series[] =>
    rows.map((row, index) => ({
      name: row.label,
      color: row.filter === null ? OTHER_COLOR : (COLORS[index] ?? OTHER_COLOR),
      values: at(row, read),
    }));
  if (measure === "requests") return [{ key: "Requests", series: series((it) => it.requests) }];
  if (measure === "tokens")
    return [{ key: "Tokens", series: series((it) => it.prompt_tokens + it.output_tokens) }];
  return (total.costs?.amounts ?? []).map(({ currency }) => ({
    key: currency,
    series: series((result) =>
      (result.costs?.amounts ?? [])
        .filter((each) => each.currency === currency)
        .reduce((sum, { amount }) => sum + Number(amount), 0),
    ).filter(({ values }) => values.some((value) => value !== 0)),
  }));
}

const [OUTPUT, UNCACHED, CACHED] = COLORS;

/** What a prompt was newly computed of, what the cache had, and what came out. */
export function tokenSeries(buckets: readonly Bucket[]): Series[] {
  const of = (read: (result: Result) => number) =>
    buckets.map(({ results }) => results.reduce((sum, result) => sum + read(result), 0));
  return [
    { name: "Prompt, uncached", color: UNCACHED, values: of((it) => it.uncached_tokens) },
    { name: "Prompt, cached", color: CACHED, values: of((it) => it.cached_tokens) },
    { name: "Output", color: OUTPUT, values: of((it) => it.output_tokens) },
  ];
}

/** Every group of every bucket, a line for each currency. */
export function csvRows(
  buckets: readonly Bucket[],
  by: Group,
  keys: ReadonlyMap<string, string>,
): (string | number | null)[][] {
  const rows: (string | number | null)[][] = [
    ["start", "end", by, "requests", "sequences", "uncached_tokens", "cached_tokens"].concat([
      "output_tokens",
      "currency",
      "amount",
      "unrated_events",
    ]),
  ];
  for (const { start, end, results } of buckets)
    for (const result of results) {
      const { label } = named(result, by, keys);
      const counts = [
        result.requests,
        result.sequences,
        result.uncached_tokens,
        result.cached_tokens,
        result.output_tokens,
      ];
      const amounts = result.costs?.amounts ?? [];
      const unrated = result.costs?.unrated_events ?? 0;
      const none = { currency: null, amount: null };
      // Counts stand once: of the first currency.
      (amounts.length > 0 ? amounts : [none]).forEach(({ currency, amount }, index) => {
        const own = index === 0 ? counts : counts.map(() => null);
        rows.push([start, end, label, ...own, currency, amount, index === 0 ? unrated : null]);
      });
    }
  return rows;
}
