/** What of a tenant's limits is used, as rows of a page. Knows no component. */

import { formatBytes, formatCount, formatMoney } from "../../components/format";
import type { Limits } from "./queries";

export interface LimitRow {
  name: string;
  note: string;
  used: string;
  /** null: not limited. */
  limit: string | null;
  left: string | null;
  /** 0 to 1 of the limit, to draw with; null without one. */
  part: number | null;
}

type Rate = Limits["requests_per_min"];

/** How much of a limit is used; one of 0 is used up. */
export function partOf(used: number, limit: number | null): number | null {
  if (limit === null) return null;
  return limit === 0 ? 1 : Math.min(1, used / limit);
}

function row(
  name: string,
  note: string,
  used: number | null,
  limit: number | null,
  show = formatCount,
): LimitRow {
  const isKnown = used !== null;
  return {
    name,
    note,
    used: isKnown ? show(used) : "unknown",
    limit: limit === null ? null : show(limit),
    left: limit === null || !isKnown ? null : show(Math.max(0, limit - used)),
    part: isKnown ? partOf(used, limit) : null,
  };
}

export function secondsUntil(resetMs: number): string {
  return resetMs === 0 ? "resets now" : `resets in ${Math.ceil(resetMs / 1000)} s`;
}

function rates(of: { requests_per_min: Rate; tokens_per_min: Rate }): LimitRow[] {
  const rate = (name: string, { used, limit, reset_ms }: Rate) =>
    row(name, limit === null ? "" : secondsUntil(reset_ms), used, limit);
  return [
    rate("Requests per minute", of.requests_per_min),
    rate("Tokens per minute", of.tokens_per_min),
  ];
}

function parallel({ used, limit }: Limits["parallel_requests"]): LimitRow {
  return row("Parallel sequences", "counted while requests run", used, limit);
}

export function planRows(limits: Limits): LimitRow[] {
  return [
    ...rates(limits),
    parallel(limits.parallel_requests),
    row("Adapters", "", limits.adapters_used, limits.adapters),
    row(
      "Stored adapters",
      "including open uploads",
      limits.adapter_bytes_used,
      limits.adapter_bytes,
      formatBytes,
    ),
  ];
}

export function keyRows(key: NonNullable<Limits["key"]>): LimitRow[] {
  return [...rates(key), parallel(key.parallel_requests)];
}

type Budget = Limits["budgets"][number];

export const BUDGET_NAMES: Record<Budget["name"], string> = {
  account_month: "This month, your account budget",
  plan_month: "This month, all keys",
  plan_day: "Today, all keys",
  key_month: "This month, this key and those it created",
  key_day: "Today, this key and those it created",
  credit: "Prepaid credit",
};

export const BUDGET_WORDS: Record<Budget["state"], string> = {
  ok: "within budget",
  soft: "above the soft limit",
  hard: "used up",
};

/** An amount as the server sent it; in a currency that is not known, the bare number. */
export function money(amount: string, currency: string | null): string {
  return currency === null ? formatMoney(amount, "").trim() : formatMoney(amount, currency);
}

/** Spent, and held beside it, as parts of the cap: to draw with. */
export function budgetParts({ cap, spent, held }: Budget): { spent: number; held: number } {
  const whole = Number(cap);
  if (whole <= 0) return { spent: 1, held: 0 };
  const part = Math.min(1, Math.max(0, Number(spent) / whole));
  return { spent: part, held: Math.min(1 - part, Math.max(0, Number(held) / whole)) };
}
