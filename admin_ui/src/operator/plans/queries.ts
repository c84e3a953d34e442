/** What pages about plans ask the API for. */

import type { Schemas } from "../../api/client";
import { useChange, usePaged } from "../../api/paged";
import type { PlanBody } from "./model";

export type PlanListed = Schemas["PlanListed"];
export const PLAN_SORTS = ["name", "-name", "tenants", "-tenants"] as const;
export type PlanSort = (typeof PLAN_SORTS)[number];

const LIST = "/admin/v1/plans";
const PAGE = 100;

export function usePlans(filters: { q?: string; sort?: PlanSort } = {}) {
  return usePaged<PlanListed, Schemas["PlanList"]>(LIST, filters, (client, after) =>
    client.GET(LIST, { params: { query: { ...filters, after, limit: PAGE } } }),
  );
}

export function usePlanNames(): string[] {
  return usePlans().rows.map(({ name }) => name);
}

export function usePutPlan(onDone: (plan: Schemas["Plan"]) => void) {
  return useChange(
    [LIST, "/admin/v1/tenants", "/admin/v1/costs/tenants"],
    (client, { name, body }: { name: string; body: PlanBody }) =>
      client.PUT("/admin/v1/plans/{name}", { params: { path: { name } }, body }),
    onDone,
  );
}
