/** A tenant's books in its own words. Pure. */

import type { Schemas } from "../../api/client";
import { sumOf } from "../../components/decimal";
import { isMeter, METER_NAMES } from "../../operator/prices/model";

type Balance = Schemas["LedgerBalance"];

const ACCOUNTS: Record<string, string> = {
  unbilled: "Not invoiced yet",
  receivable: "Open invoices",
  cash: "Paid",
  tax: "Tax",
  rounding: "Rounding of invoices",
  promotion: "Credit given",
  "credit:granted": "Granted credit",
  "credit:bought": "Bought credit",
  "credit:lapsed": "Lapsed credit",
  "revenue:minimum": "Monthly minimum",
  "revenue:included": "Included usage",
};

export function accountName(account: string): string {
  const meter = account.replace(/^revenue:/, "");
  return ACCOUNTS[account] ?? (isMeter(meter) ? METER_NAMES[meter].label : account);
}

/** Kinds of entries, as the filter has them. */
export const KINDS: Record<string, string> = {
  usage: "Usage",
  grant: "Credit received",
  credit: "Paid by credit",
  lapse: "Credit lapsed",
  invoice: "Invoice",
  payment: "Payment",
  credit_note: "Credit note",
};

export function kindName(kind: string): string {
  return KINDS[kind] ?? kind;
}

/** By currency, what the accounts of these names come to; `sign` -1 for what is owed to the tenant. */
export function balanceOf(
  balances: readonly Balance[],
  accounts: readonly string[],
  sign: 1 | -1 = 1,
): Record<string, string> {
  const found: Record<string, string[]> = {};
  for (const { account, currency, balance } of balances)
    if (accounts.includes(account)) {
      const amounts = found[currency] ?? [];
      amounts.push(sign === 1 ? balance : turned(balance));
      found[currency] = amounts;
    }
  return Object.fromEntries(Object.entries(found).map(([of, amounts]) => [of, sumOf(amounts)]));
}

function turned(amount: string): string {
  return amount.startsWith("-") ? amount.slice(1) : `-${amount}`;
}
