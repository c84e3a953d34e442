/** Calendar months in UTC, the platform's billing month, and the rows the usage page draws. */

import type { Schemas } from "../../api/client";

export interface Month {
  year: number;
  month: number; // 0-11
}

export function monthOf(date: Date): Month {
  return { year: date.getUTCFullYear(), month: date.getUTCMonth() };
}

export function shift({ year, month }: Month, by: number): Month {
  return monthOf(new Date(Date.UTC(year, month + by, 1)));
}

/** From the first moment of the month to the first of the next. */
export function bounds({ year, month }: Month): { start: string; end: string } {
  const iso = (date: Date) => date.toISOString().replace(".000Z", "Z");
  return {
    start: iso(new Date(Date.UTC(year, month, 1))),
    end: iso(new Date(Date.UTC(year, month + 1, 1))),
  };
}

export function title({ year, month }: Month): string {
  return new Date(Date.UTC(year, month, 1)).toLocaleString("en-GB", {
    month: "long",
    year: "numeric",
    timeZone: "UTC",
  });
}

export interface DayRow extends Record<string, string | number> {
  day: string;
  Uncached: number;
  Cached: number;
  Output: number;
}

/** One row for every day of the month, days without use included. */
export function dayRows(month: Month, buckets: Schemas["UsageBucket"][]): DayRow[] {
  const days = new Date(Date.UTC(month.year, month.month + 1, 0)).getUTCDate();
  const rows = Array.from(
    { length: days },
    (_, index): DayRow => ({ day: String(index + 1), Uncached: 0, Cached: 0, Output: 0 }),
  );
  for (const bucket of buckets) {
    const start = new Date(bucket.start);
    const row = rows[start.getUTCDate() - 1];
    if (!row || start.getUTCMonth() !== month.month) continue;
    for (const result of bucket.results) {
      row.Uncached += result.uncached_tokens;
      row.Cached += result.cached_tokens;
      row.Output += result.output_tokens;
    }
  }
  return rows;
}

export interface AdapterRow {
  key: string;
  adapter: string | null; // null: the base model
  usage: Schemas["UsageResult"] | null;
  cost: Schemas["CostResult"] | null;
}

const BASE = "\u0000base";

/** Usage and cost of each adapter side by side, most output first. */
export function adapterRows(
  usage: Schemas["UsageResult"][],
  costs: Schemas["CostResult"][],
): AdapterRow[] {
  const rows = new Map<string, AdapterRow>();
  const row = (adapter: string | null | undefined): AdapterRow => {
    const key = adapter ?? BASE;
    const found = rows.get(key) ?? { key, adapter: adapter ?? null, usage: null, cost: null };
    rows.set(key, found);
    return found;
  };
  for (const result of usage) row(result.adapter).usage = result;
  for (const result of costs) row(result.adapter).cost = result;
  return [...rows.values()].sort(
    (a, b) => (b.usage?.output_tokens ?? 0) - (a.usage?.output_tokens ?? 0),
  );
}
