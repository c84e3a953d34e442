/** What the page of one tenant makes of the API's answers. Pure. */

import type { Schemas } from "../../api/client";
import { isDecimal, sumOf } from "../../components/decimal";

export const TABS = {
  overview: "Overview",
  usage: "Usage",
  keys: "Keys",
  people: "People",
  credit: "Credit and ledger",
  invoices: "Invoices",
  billing: "Billing profile",
  settings: "Settings",
} as const;
export type Tab = keyof typeof TABS;

export function tabOf(text: string | null): Tab {
  return text !== null && Object.hasOwn(TABS, text) ? (text as Tab) : "overview";
}

export interface AdapterCost {
  key: string;
  adapter: string | null;
  tier: string;
  currency: string;
  amount: string;
  meters: Schemas["MeterCost"][];
  unrated: number;
}

/** This month's costs by adapter and class, as the API sorts them. */
export function costsOf(page: Schemas["CostPage"]): AdapterCost[] {
  return page.data.flatMap(({ results }) =>
    results.map((each) => ({
      key: `${each.adapter ?? ""} ${each.tier ?? ""} ${each.currency}`,
      adapter: each.adapter ?? null,
      tier: each.tier ?? "",
      currency: each.currency,
      amount: each.amount,
      meters: each.meters,
      unrated: each.unrated_events,
    })),
  );
}

export interface Tokens {
  times: number[];
  /** By class. */
  classes: { name: string; values: number[] }[];
}

/** Tokens of each day by class: prompt and output together. */
export function tokensOf(page: Pick<Schemas["UsagePage"], "data">): Tokens {
  const names = [
    ...new Set(page.data.flatMap(({ results }) => results.map(({ tier }) => tier ?? ""))),
  ].sort();
  return {
    times: page.data.map(({ start }) => Date.parse(start) / 1000),
    classes: names.map((name) => ({
      name,
      values: page.data.map(({ results }) =>
        results
          .filter(({ tier }) => (tier ?? "") === name)
          .reduce((total, each) => total + each.prompt_tokens + each.output_tokens, 0),
      ),
    })),
  };
}

/** What is left of credit by currency: what the ledger owes of it, liabilities being below 0. */
export function creditOf(balances: readonly Schemas["LedgerBalance"][]): Record<string, string> {
  const found: Record<string, string[]> = {};
  for (const { account, currency, balance } of balances)
    if (account === "credit:granted" || account === "credit:bought")
      found[currency] = [...(found[currency] ?? []), negated(balance)];
  return Object.fromEntries(Object.entries(found).map(([of, amounts]) => [of, sumOf(amounts)]));
}

export function negated(amount: string): string {
  return amount.startsWith("-") ? amount.slice(1) : `-${amount}`;
}

export interface GrantFields {
  amount: string;
  currency: string;
  kind: "granted" | "bought";
  /** The last day that it holds, UTC; "" for ever. */
  until: string;
  note: string;
}

export const NEW_GRANT: GrantFields = {
  amount: "",
  currency: "",
  kind: "granted",
  until: "",
  note: "",
};

export function grantFault(fields: GrantFields): string | null {
  if (!isDecimal(fields.amount) || !/[1-9]/.test(fields.amount) || fields.amount.startsWith("-"))
    return "Enter an amount above 0, for example 25.00";
  if (fields.currency !== "" && !/^[A-Z]{3}$/.test(fields.currency))
    return "Enter a three-letter currency code, for example USD";
  return null;
}

/** The day after the last one is when it ends. */
export function grantBody(fields: GrantFields): Schemas["CreditCreate"] {
  const end =
    fields.until === "" ? null : new Date(Date.parse(`${fields.until}T00:00:00Z`) + 864e5);
  return {
    amount: fields.amount,
    kind: fields.kind,
    currency: fields.currency || null,
    expires_at: end?.toISOString() ?? null,
    note: fields.note.trim() || null,
  };
}
