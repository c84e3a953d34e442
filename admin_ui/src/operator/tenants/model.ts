/** How the list of tenants is asked for. Pure. */

import { ApiError } from "../../api/errors";

export const SORTS = [
  "created",
  "-created",
  "name",
  "-name",
  "requests",
  "-requests",
  "spend",
  "-spend",
] as const;
export type TenantSort = (typeof SORTS)[number];
export const STATUSES = ["active", "suspended"] as const;
export type TenantStatus = (typeof STATUSES)[number];

export interface TenantFilters {
  q?: string;
  plan?: string;
  status?: TenantStatus;
  sort: TenantSort;
  currency?: string;
}

function known<T extends string>(of: readonly T[], text: string | null): T | undefined {
  return of.find((each) => each === text);
}

/** From the address, in which anything may stand. */
export function filtersOf(params: URLSearchParams): TenantFilters {
  const filters: TenantFilters = { sort: known(SORTS, params.get("sort")) ?? "-created" };
  const q = params.get("q");
  const plan = params.get("plan");
  const status = known(STATUSES, params.get("status"));
  const currency = params.get("currency");
  if (q) filters.q = q;
  if (plan) filters.plan = plan;
  if (status) filters.status = status;
  if (currency && /^[A-Z]{3}$/.test(currency)) filters.currency = currency;
  return filters;
}

/** The ids of tenants that have the name already, where that is why it was refused. */
export function namesakesIn(error: unknown): string[] {
  if (!(error instanceof ApiError) || error.code !== "tenant_name_exists") return [];
  return error.message.match(/tenant_[0-9A-Za-z]+/g) ?? [];
}
