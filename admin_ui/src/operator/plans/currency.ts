/** In which currency a plan's budgets are. Pure. */

import { formatMoney } from "../../components/format";
import { NUMBERS, type NumberField, shown } from "./model";

/** "USD", or "EUR or USD" where lists in force differ; "": there is no price list. */
export function currencyWords(currencies: readonly string[]): string {
  return currencies.join(" or ");
}

/** A number of a plan as it is shown, a budget with its currency. */
export function shownIn(field: NumberField, value: string, currencies: readonly string[]): string {
  if (NUMBERS[field].kind !== "money" || value === "") return shown(field, value);
  const [only] = currencies;
  if (currencies.length === 1 && only !== undefined) return formatMoney(value, only);
  return currencies.length === 0
    ? `${value}, no price list yet`
    : `${value} ${currencyWords(currencies)}`;
}
