/** What the operator's tenants page asks the API for. */

import type { Schemas } from "../../api/client";
import { useChange, usePaged } from "../../api/paged";
import type { TenantFilters } from "./model";

export type Tenant = Schemas["Tenant"];
export type TenantListed = Schemas["TenantListed"];

const PAGE = 50;
const LIST = "/admin/v1/tenants";
const TOUCHED = [LIST, "/admin/v1/plans", "/admin/v1/costs/tenants"] as const;

export function useTenants(filters: TenantFilters) {
  return usePaged<TenantListed, Schemas["TenantPage"]>(LIST, filters, (client, after) =>
    client.GET(LIST, { params: { query: { ...filters, after, limit: PAGE } } }),
  );
}

export function useCreateTenant(onDone: (tenant: Tenant) => void) {
  return useChange(
    TOUCHED,
    (client, body: Schemas["TenantCreate"]) => client.POST(LIST, { body }),
    onDone,
  );
}

export function useChangeTenant(onDone?: (tenant: Tenant) => void) {
  return useChange(
    TOUCHED,
    (client, { id, ...body }: { id: string } & Schemas["TenantChange"]) =>
      client.PATCH("/admin/v1/tenants/{tenant_id}", { params: { path: { tenant_id: id } }, body }),
    onDone,
  );
}

export function useDeleteTenant(onDone?: (tenant: Tenant) => void) {
  return useChange(
    TOUCHED,
    (client, id: string) =>
      client.DELETE("/admin/v1/tenants/{tenant_id}", { params: { path: { tenant_id: id } } }),
    onDone,
  );
}

export function useRestoreTenant(onDone?: (tenant: Tenant) => void) {
  return useChange(
    TOUCHED,
    (client, id: string) =>
      client.POST("/admin/v1/tenants/{tenant_id}/restore", { params: { path: { tenant_id: id } } }),
    onDone,
  );
}
