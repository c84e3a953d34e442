/** What the pages about keys ask the API for: a tenant's own, or a tenant's for the operator. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../../api/client";
import { useApi } from "../../api/context";
import { useChange, usePaged } from "../../api/paged";
import { useAccountBudget } from "../budget/queries";
import { useCurrency } from "../limits/queries";
import type { ApiKey } from "./model";

/** The tenant whose keys the operator looks at; null: one's own. */
export type Owner = string | null;
export type NewApiKey = Schemas["NewApiKey"];
export type KeySort = "created" | "-created" | "name" | "-name" | "last_used" | "-last_used";
export type KeyFilter = "active" | "ended";

const OWN = "/v1/api_keys";
const THEIRS = "/admin/v1/tenants/{tenant_id}/api_keys";
const TOUCHED = ["api_keys"];
const LIMIT = 50;

export interface KeyFilters {
  q?: string;
  state?: KeyFilter;
  sort: KeySort;
}

export function useKeys(owner: Owner, filters: KeyFilters) {
  return usePaged<ApiKey, Schemas["ApiKeyPage"]>(
    owner === null ? OWN : THEIRS,
    { owner, ...filters },
    (client, after) => {
      const query = { ...filters, after, limit: LIMIT };
      return owner === null
        ? client.GET(OWN, { params: { query } })
        : client.GET(THEIRS, { params: { path: { tenant_id: owner }, query } });
    },
  );
}

const SUGGESTED = 100;

/** Names that a key of one's own may be bound to, as suggestions: others can be typed. */
export function useModelNames(owner: Owner): string[] {
  const { client } = useApi();
  const models = useQuery({
    queryKey: ["/v1/models", "suggested"],
    enabled: owner === null,
    queryFn: async () => {
      const { data } = await client.GET("/v1/models", { params: { query: { limit: SUGGESTED } } });
      return required(data).data.map(({ id }) => id);
    },
  });
  return models.data ?? [];
}

/** In which currency the budgets of these keys are; null: it is not known. */
export function useBudgetCurrency(owner: Owner): string | null {
  const own = useCurrency(owner === null);
  const theirs = useAccountBudget(owner ?? "", owner !== null).data;
  if (owner === null) return own;
  return theirs?.currencies.length === 1 ? (theirs.currencies[0] ?? null) : null;
}

export function useCreateKey(owner: Owner, onDone: (key: NewApiKey) => void) {
  return useChange<Schemas["ApiKeyCreate"], NewApiKey>(
    TOUCHED,
    (client, body) =>
      owner === null
        ? client.POST(OWN, { body })
        : client.POST(THEIRS, { params: { path: { tenant_id: owner } }, body }),
    onDone,
  );
}

export function useChangeKey(owner: Owner, onDone: () => void) {
  return useChange<{ id: string; body: Schemas["ApiKeyChange"] }, ApiKey>(
    TOUCHED,
    (client, { id, body }) =>
      owner === null
        ? client.PATCH("/v1/api_keys/{key_id}", { params: { path: { key_id: id } }, body })
        : client.PATCH("/admin/v1/tenants/{tenant_id}/api_keys/{key_id}", {
            params: { path: { tenant_id: owner, key_id: id } },
            body,
          }),
    onDone,
  );
}

export function useRotateKey(owner: Owner, onDone: (key: NewApiKey) => void) {
  return useChange<{ id: string; overlap_s: number }, NewApiKey>(
    TOUCHED,
    (client, { id, overlap_s }) =>
      owner === null
        ? client.POST("/v1/api_keys/{key_id}/rotate", {
            params: { path: { key_id: id } },
            body: { overlap_s },
          })
        : client.POST("/admin/v1/tenants/{tenant_id}/api_keys/{key_id}/rotate", {
            params: { path: { tenant_id: owner, key_id: id } },
            body: { overlap_s },
          }),
    onDone,
  );
}

export function useRevokeKey(owner: Owner, onDone: () => void) {
  return useChange<string, Schemas["RevokedApiKey"]>(
    TOUCHED,
    (client, id) =>
      owner === null
        ? client.DELETE("/v1/api_keys/{key_id}", { params: { path: { key_id: id } } })
        : client.DELETE("/admin/v1/tenants/{tenant_id}/api_keys/{key_id}", {
            params: { path: { tenant_id: owner, key_id: id } },
          }),
    onDone,
  );
}
