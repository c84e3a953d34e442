/** Which price list holds for what, and why. Pure. */

import type { Schemas } from "../../api/client";

export type TenantPrice = Schemas["TenantPrice"];

/** For whom a list is made, as its tenant says it. */
export function nameOf({ adapter, adapter_name, tenant, plan, model }: TenantPrice): string {
  const whose = adapter
    ? `Your adapter ${adapter_name ?? adapter}`
    : tenant
      ? "Your account"
      : plan
        ? null
        : "Everybody";
  const parts = [whose, plan && `plan ${plan}`, model && `model ${model}`].filter(Boolean);
  return parts.join(", ").replace(/^./, (first) => first.toUpperCase());
}

/** As the server compares lists: adapter before tenant before plan before model. */
function rank({ adapter, tenant, plan, model }: TenantPrice): number {
  return (adapter ? 8 : 0) + (tenant ? 4 : 0) + (plan ? 2 : 0) + (model ? 1 : 0);
}

/** Whether all usage of this tenant that `list` is made for is `other`'s, too. */
function isWithin(list: TenantPrice, other: TenantPrice): boolean {
  const covers = (wanted: string | null, has: string | null) => wanted === null || wanted === has;
  return covers(other.adapter, list.adapter) && covers(other.model, list.model);
}

export interface Holding {
  price: TenantPrice;
  /** The list that takes all of its usage; null: it prices some. */
  overriddenBy: TenantPrice | null;
  /** More specific lists that take a part of its usage. */
  except: TenantPrice[];
}

/** Those in force, the most specific first, with what each of them prices. */
export function holding(prices: readonly TenantPrice[]): Holding[] {
  const inForce = prices.filter(({ status }) => status === "in_force");
  return inForce.map((price) => {
    const above = inForce.filter((other) => rank(other) > rank(price));
    const overriddenBy = above.find((other) => isWithin(price, other)) ?? null;
    return { price, overriddenBy, except: overriddenBy ? [] : above.filter(isPart(price)) };
  });
}

function isPart(price: TenantPrice) {
  const meets = (one: string | null, other: string | null) =>
    one === null || other === null || one === other;
  return (other: TenantPrice) =>
    meets(other.adapter, price.adapter) && meets(other.model, price.model);
}

export function announced(prices: readonly TenantPrice[]): TenantPrice[] {
  return prices
    .filter(({ status }) => status === "announced")
    .sort((a, b) => Date.parse(a.effective_from) - Date.parse(b.effective_from));
}

/** Which usage a list prices now, and why. */
export function reason({ price, overriddenBy, except }: Holding): string {
  if (overriddenBy !== null)
    return `Not in use now: the list “${nameOf(overriddenBy)}” is more specific and applies to the same usage.`;
  const of = [
    price.adapter ? `requests of your adapter ${price.adapter_name ?? price.adapter}` : "all usage",
    price.model ? `of the model ${price.model}` : "",
  ]
    .join(" ")
    .trim();
  if (except.length === 0) return `Applies to ${of}.`;
  const names = except.map((each) => `“${nameOf(each)}”`).join(", ");
  return `Applies to ${of}, except what the more specific ${except.length === 1 ? "list" : "lists"} ${names} ${except.length === 1 ? "covers" : "cover"}.`;
}
