/** The account's budget as a form has it and in words. Pure. */

import type { Schemas } from "../../api/client";
import { compare, isDecimal, partOf } from "../../components/decimal";
import { formatDate, formatMoney } from "../../components/format";

export type AccountBudget = Schemas["AccountBudget"];
/** One that is set. */
export type SetBudget = AccountBudget & { amount: string; spent: string };

export interface BudgetFields {
  amount: string;
  currency: string;
  hard: boolean;
  thresholds: string[]; // percent
}

export const THRESHOLDS = ["50", "80", "100"];

export function isSet(budget: AccountBudget): budget is SetBudget {
  return budget.amount != null && budget.spent != null;
}

export function fieldsOf(budget: AccountBudget): BudgetFields {
  return {
    amount: budget.amount?.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "") ?? "",
    currency: budget.currency,
    hard: budget.hard,
    thresholds: isSet(budget) ? budget.thresholds.map(String) : THRESHOLDS,
  };
}

export function bodyOf({ amount, currency, hard, thresholds }: BudgetFields) {
  return { amount, currency, hard, thresholds: thresholds.map(Number) };
}

export const REFUSE = "Refuse requests when the budget is used up";

/** A refusal of the API's that names a field of the body, by what the form calls it. */
export function inFormWords(error: Error): Error {
  const words = error.message.replace("set hard to false", `clear “${REFUSE}”`);
  return words === error.message ? error : new Error(words);
}

export interface Faults {
  amount?: string;
  thresholds?: string;
}

export function faultsIn({ amount, thresholds }: BudgetFields): Faults {
  const faults: Faults = {};
  if (!isDecimal(amount) || compare(amount, "0") <= 0)
    faults.amount = "Enter an amount above 0, such as 25.00.";
  if (thresholds.length > 10) faults.thresholds = "Enter at most 10 thresholds.";
  if (thresholds.some((each) => !/^\d{1,3}$/.test(each) || Number(each) < 1 || Number(each) > 200))
    faults.thresholds = "Enter whole percentages from 1 to 200.";
  return faults;
}

/** The currencies to choose from; one that is no price's any more stays as long as it is set. */
export function currenciesFor(budget: AccountBudget): string[] {
  return [...new Set([...budget.currencies, budget.currency])].sort();
}

/** 0 to 1 of the budget, to draw; more than all of it fills the bar. */
export function usedPart({ spent, amount }: SetBudget): number {
  return Math.min(partOf(spent, amount) ?? 1, 1);
}

export type Level = "ok" | "near" | "reached";

export function levelOf(budget: SetBudget): Level {
  if (compare(budget.spent, budget.amount) >= 0) return "reached";
  return budget.alerts.length > 0 ? "near" : "ok";
}

export const LEVEL_COLORS: Record<Level, string> = { ok: "teal", near: "yellow", reached: "red" };

/** What the budget does not cover, because prices are in other currencies; null: nothing. */
export function gapOf(budget: AccountBudget): string | null {
  const { currency, currencies, hard } = budget;
  const others = currencies.filter((each) => each !== currency).join(" and ");
  if (!isSet(budget) || others === "") return null;
  if (currencies.includes(currency))
    return `Usage priced in ${others} does not count${hard ? " and is not refused" : ""}.`;
  return `Prices are in ${others} now and no longer in ${currency}: this budget ${
    hard ? "refuses no requests" : "sends no alerts of new usage"
  }. Set one in ${others.replace(/ and /g, " or ")}.`;
}

/** What whoever looks at any page has to know; null: nothing. */
export function alertOf(budget: AccountBudget): string | null {
  if (!isSet(budget)) return null;
  if (budget.hard && !budget.binds) return `The account budget does not bind. ${gapOf(budget)}`;
  const last = budget.alerts.at(-1);
  const amount = formatMoney(budget.amount, budget.currency);
  const spent = formatMoney(budget.spent, budget.currency);
  if (levelOf(budget) === "reached")
    return budget.hard
      ? `The account budget of ${amount} is used up. Requests are refused until ${formatDate(budget.resets_at)}.`
      : `The account budget of ${amount} is used up: ${spent} is spent this month.`;
  return last === undefined
    ? null
    : `${last.threshold}% of the account budget of ${amount} is reached: ${spent} is spent this month.`;
}

/** What was hidden stays hidden until there is something new to say. */
export function hiddenAs(budget: AccountBudget): string {
  const last = budget.alerts.at(-1)?.threshold ?? 0;
  const gap = budget.hard && !budget.binds ? budget.currencies.join("+") : "";
  return [budget.tenant_id, budget.period, budget.amount, budget.currency, last, gap].join(" ");
}
