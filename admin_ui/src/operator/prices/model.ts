/** Price lists in words and on a line of time. Pure. */

import type { Schemas } from "../../api/client";
import { formatCount, formatMoney } from "../../components/format";

export type Price = Schemas["PriceVersionListed"];
export type ScopeOf = Pick<
  Price,
  "model" | "plan" | "tenant" | "adapter" | "tenant_name" | "adapter_name"
>;

export const METERS = [
  "uncached_prefill",
  "cached_prefill",
  "output",
  "cold_load",
  "device_residency",
  "host_residency",
  "stored",
] as const;
export type Meter = (typeof METERS)[number];
export const METER_NAMES: Record<Meter, { label: string; unit: string }> = {
  uncached_prefill: { label: "Prompt tokens", unit: "per million tokens" },
  cached_prefill: { label: "Cached prompt tokens", unit: "per million tokens" },
  output: { label: "Output tokens", unit: "per million tokens" },
  cold_load: { label: "Adapter loads", unit: "per million loads" },
  device_residency: { label: "Adapters in device memory", unit: "per GB-second" },
  host_residency: { label: "Adapters in host memory", unit: "per GB-second" },
  stored: { label: "Stored adapters", unit: "per GB-hour" },
};
/** Of what no request uses, and so no class. */
export const HELD: readonly Meter[] = ["device_residency", "host_residency", "stored"];

export function isMeter(name: string): name is Meter {
  return METERS.some((meter) => meter === name);
}

/** For whom a list holds, the most specific part first. */
export function scopeWords(of: ScopeOf): string {
  const parts: string[] = [];
  if (of.adapter) parts.push(`adapter ${of.adapter_name ?? of.adapter}`);
  if (of.tenant) parts.push(of.adapter ? `of ${of.tenant_name ?? of.tenant}` : tenantWords(of));
  if (of.plan) parts.push(`plan ${of.plan}`);
  if (of.model) parts.push(`model ${of.model}`);
  const words = parts.join(", ").replace(", of ", " of ");
  return words === "" ? "All tenants" : words.charAt(0).toUpperCase() + words.slice(1);
}

function tenantWords({ tenant, tenant_name }: ScopeOf): string {
  return `tenant ${tenant_name ?? tenant}`;
}

export interface Entry {
  meter: Meter;
  /** null: of every class without a price of its own. */
  class_: string | null;
  from: number;
  price: string;
}

/** All prices of a list, in its order of meters. */
export function entriesOf(perMillion: Price["per_million"]): Entry[] {
  return METERS.flatMap((meter) => {
    const found = perMillion[meter];
    if (found === undefined) return [];
    if (typeof found === "string") return [{ meter, class_: null, from: 0, price: found }];
    return found.map((each) => ({
      meter,
      class_: each.class ?? null,
      from: each.from,
      price: each.price,
    }));
  });
}

/** The first price of the three meters of tokens: what a list is known by. */
export function summary(price: Price): string {
  const entries = entriesOf(price.per_million);
  const of = (meter: Meter) => {
    const found = entries.filter((each) => each.meter === meter);
    const first = found.find(({ class_ }) => class_ === null) ?? found[0];
    if (first === undefined) return "–";
    return formatMoney(first.price, price.currency) + (found.length > 1 ? "…" : "");
  };
  return METERS.slice(0, 3).map(of).join(" / ");
}

export function tierWords(from: number): string {
  return from === 0 ? "from the first unit" : `from ${formatCount(from)}`;
}

/** Meters that a list has no price of any class for: usage of them waits. */
export function missingMeters(price: Price): Meter[] {
  const entries = entriesOf(price.per_million);
  return METERS.filter((meter) => !entries.some((each) => each.meter === meter));
}

export interface Bar {
  price: Price;
  /** Parts of the line, from 0 to 1. */
  left: number;
  width: number;
  isOpen: boolean;
}

export interface Lane {
  key: string;
  label: string;
  bars: Bar[];
}

export interface Timeline {
  startMs: number;
  endMs: number;
  now: number;
  lanes: Lane[];
  ticks: { at: number; label: string }[];
}

const DAY_MS = 86_400_000;
const BACK_MS = 365 * DAY_MS;
const AHEAD_MS = 30 * DAY_MS;

/** A lane for each scope, the general ones first; at most a year back, a month beyond the last. */
export function timeline(prices: readonly Price[], nowMs: number): Timeline {
  const begins = prices.map(({ effective_from }) => Date.parse(effective_from));
  const first = Math.min(nowMs - AHEAD_MS, ...begins);
  const startMs = Math.max(first, nowMs - BACK_MS);
  const endMs = Math.max(nowMs, ...begins) + AHEAD_MS;
  const place = (ms: number) => Math.min(Math.max((ms - startMs) / (endMs - startMs), 0), 1);
  const lanes = new Map<string, Lane>();
  for (const price of [...prices].sort(bySpecificity)) {
    const key = [price.adapter, price.tenant, price.plan, price.model].join("|");
    const lane = lanes.get(key) ?? { key, label: scopeWords(price), bars: [] };
    lanes.set(key, lane);
    const end = price.effective_to === null ? endMs : Date.parse(price.effective_to);
    const left = place(Date.parse(price.effective_from));
    if (end > startMs)
      lane.bars.push({
        price,
        left,
        width: place(end) - left,
        isOpen: price.effective_to === null,
      });
  }
  return {
    startMs,
    endMs,
    now: place(nowMs),
    lanes: [...lanes.values()],
    ticks: months(startMs, endMs).map((ms) => ({ at: place(ms), label: monthName(ms) })),
  };
}

function bySpecificity(left: Price, right: Price): number {
  const rank = ({ adapter, tenant, plan, model }: Price) =>
    (adapter ? 8 : 0) + (tenant ? 4 : 0) + (plan ? 2 : 0) + (model ? 1 : 0);
  return (
    rank(left) - rank(right) ||
    scopeWords(left).localeCompare(scopeWords(right)) ||
    Date.parse(left.effective_from) - Date.parse(right.effective_from)
  );
}

/** The first moments of months (UTC) in between, every third where there are many. */
function months(startMs: number, endMs: number): number[] {
  const found: number[] = [];
  const start = new Date(startMs);
  for (let month = 1; ; month++) {
    const ms = Date.UTC(start.getUTCFullYear(), start.getUTCMonth() + month);
    if (ms >= endMs) break;
    found.push(ms);
  }
  const step = found.length > 8 ? 3 : 1;
  return found.filter((_, index) => index % step === 0);
}

function monthName(ms: number): string {
  return new Date(ms).toLocaleString("en-GB", { month: "short", year: "numeric", timeZone: "UTC" });
}
