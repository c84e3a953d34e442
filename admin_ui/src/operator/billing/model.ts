/** Spend of a month as charts and rows have it. Amounts stay strings; only drawings are numbers. */

import type { Schemas } from "../../api/client";
import { compare, drawn, partOf, sumOf } from "../../components/decimal";

export type MonthCost = Schemas["MonthCost"];
export type TenantCosts = Schemas["TenantCosts"];
export type Budget = Schemas["MonthBudget"];

const DAY_S = 86_400;
const DAY_MS = 1000 * DAY_S;

/** Names of months (UTC), this one first. */
export function months(now: Date, count = 13): string[] {
  return Array.from({ length: count }, (_, back) =>
    new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back)).toISOString().slice(0, 7),
  );
}

export function isMonth(text: string | null): text is string {
  return text !== null && /^20\d\d-(0[1-9]|1[0-2])$/.test(text);
}

/** One amount for each day from `start` to `last` (dates), of those that are known. */
export function monthsCosts(
  known: readonly { day: string; amount: string }[],
  start: string,
  last: string,
): string[] {
  const byDay = new Map(known.map(({ day, amount }) => [day, amount]));
  const found: string[] = [];
  for (
    let at = Date.parse(`${start}T00:00:00Z`);
    at <= Date.parse(`${last}T00:00:00Z`);
    at += DAY_MS
  )
    found.push(byDay.get(new Date(at).toISOString().slice(0, 10)) ?? "0");
  return found;
}

export interface Curve {
  /** The end of each day of the month, unix seconds. */
  times: number[];
  /** What had been spent by then; null: it has not come. */
  spent: (number | null)[];
  /** From today's point straight to what the month comes to; null before, or without a forecast. */
  ahead: (number | null)[];
}

/** What a month adds up to, day by day, and where it leads. `start` and `end` are dates, UTC. */
export function curveOf(
  days: readonly string[],
  start: string,
  end: string,
  projected: string | null,
): Curve {
  const first = Date.parse(`${start}T00:00:00Z`) / 1000;
  const count = Math.round((Date.parse(`${end}T00:00:00Z`) / 1000 - first) / DAY_S);
  const last = days.length - 1;
  const curve: Curve = { times: [], spent: [], ahead: [] };
  const total = drawn(sumOf(days));
  let running = "0";
  for (let day = 0; day < count; day++) {
    curve.times.push(first + day * DAY_S);
    const cost = days[day];
    if (cost !== undefined) running = sumOf([running, cost]);
    curve.spent.push(cost === undefined ? null : drawn(running));
    const left = count - 1 - last;
    curve.ahead.push(
      projected === null || day < last || left <= 0
        ? null
        : total + ((drawn(projected) - total) * (day - last)) / left,
    );
  }
  return curve;
}

export type BudgetState = "ok" | "soft" | "over" | "leads over";

export interface BudgetUse {
  /** Of the budget, to draw: may be above 1. */
  part: number;
  state: BudgetState;
  spent: string;
}

/** How much of its budget a tenant has used in the budget's own currency. */
export function budgetUse(row: Pick<TenantCosts, "budget" | "costs">): BudgetUse | null {
  const { budget, costs } = row;
  if (budget === null) return null;
  const cost = costs.find(({ currency }) => currency === budget.currency);
  const spent = cost?.amount ?? "0";
  const part = partOf(spent, budget.amount) ?? 1;
  const projected = cost?.forecast?.projected;
  const isSoft = budget.soft !== null && part >= budget.soft;
  const state =
    compare(spent, budget.amount) >= 0
      ? "over"
      : isSoft
        ? "soft"
        : projected && compare(projected, budget.amount) >= 0
          ? "leads over"
          : "ok";
  return { part, state, spent };
}

export const BUDGET_WORDS: Record<BudgetState, string> = {
  ok: "within budget",
  soft: "above the soft limit",
  over: "exceeded",
  "leads over": "forecast to be exceeded",
};

export interface RunBody {
  period: string;
  draft: boolean;
  tenant?: string;
}

/** What a run has made; of many invoices the first are shown. */
export type Run = Pick<
  Schemas["InvoiceRun"],
  "period" | "status" | "made" | "unchanged" | "empty" | "failed" | "invoices"
>;

/** By currency, of invoices that are shown; each currency by itself. */
export function totalsOf(invoices: readonly { currency: string; total: string }[]) {
  const found: Record<string, string[]> = {};
  for (const { currency, total } of invoices) found[currency] = [...(found[currency] ?? []), total];
  return Object.fromEntries(Object.entries(found).map(([of, amounts]) => [of, sumOf(amounts)]));
}

/** What may be credited of an invoice: its lines of money that was asked for. */
export function creditable(invoice: Schemas["Invoice"]): Schemas["InvoiceLine"][] {
  return invoice.lines.filter(({ kind, amount }) => kind !== "tax" && compare(amount, "0") > 0);
}
