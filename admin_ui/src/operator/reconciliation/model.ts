/** Runs of the reconciliation in words. Pure. */

import type { Schemas } from "../../api/client";
import { counted } from "../../components/format";

export type Run = Schemas["Run"];

export type Verdict = "agrees" | "differs" | "failed" | "underway";
export const VERDICTS: Record<Verdict, { color: string; label: string }> = {
  agrees: { color: "teal", label: "all agree" },
  differs: { color: "red", label: "differences" },
  failed: { color: "red", label: "failed" },
  underway: { color: "blue", label: "underway" },
};

export function verdictOf({ state, agrees }: Run): Verdict {
  if (state === "failed") return "failed";
  if (state !== "done") return "underway";
  return agrees ? "agrees" : "differs";
}

export function differencesIn({ differences }: Run): number {
  return Object.values(differences).reduce((total, count) => total + count, 0);
}

/** `event_changed` as "event changed". */
export function kindWords(kind: string): string {
  return kind.replaceAll("_", " ");
}

const LAYERS = {
  events: "events with receipts and prices",
  archived_events: "archived events",
  occupancy_events: "memory usage events",
  engine_days: "daily totals of engines",
  hour_rows: "hourly sums",
  day_rows: "daily sums",
  ledger_amounts: "ledger amounts",
  invoices: "invoices",
} as const;

/** How much of each layer was compared, as it is proved, from the engine to the invoice. */
export function layersOf(looked: Schemas["Looked"]): { label: string; count: number }[] {
  return (Object.entries(LAYERS) as [keyof typeof LAYERS, string][]).map(([name, label]) => ({
    label,
    count: looked[name],
  }));
}

export function scopeWords({ mode, tenant_id, first, last }: Run): string {
  const parts = [mode === "full" ? "Everything" : "Changes"];
  if (tenant_id) parts.push(`for ${tenant_id}`);
  if (first && last) parts.push(first === last ? `on ${first}` : `from ${first} to ${last}`);
  else if (first) parts.push(`since ${first}`);
  else if (last) parts.push(`until ${last}`);
  return parts.join(" ");
}

const WAITS: Record<keyof Schemas["Waiting"], [one: string, many: string]> = {
  unrated_events: ["event without a price", "events without a price"],
  dead_letters: ["record that could not be processed", "records that could not be processed"],
  ledger_days: ["day not posted yet", "days not posted yet"],
  engine_sequences: [
    "sequence not yet received from an engine",
    "sequences not yet received from an engine",
  ],
};

/** What is on its way from one layer to the next, and no difference yet; null: nothing is. */
export function waitingWords(waiting: Schemas["Waiting"] | null): string | null {
  if (waiting === null) return null;
  const found = (Object.keys(WAITS) as (keyof typeof WAITS)[])
    .filter((name) => waiting[name] > 0)
    .map((name) => counted(waiting[name], ...WAITS[name]));
  return found.length === 0 ? null : found.join(", ");
}

export function secondsOf({ started_at, finished_at }: Run): number | null {
  if (!started_at || !finished_at) return null;
  return Math.max(0, (Date.parse(finished_at) - Date.parse(started_at)) / 1000);
}
