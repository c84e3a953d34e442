/** What the operator's page of one tenant asks the API for. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas, withErrors } from "../../api/client";
import { useApi } from "../../api/context";
import { useChange, usePaged } from "../../api/paged";

const ONE = "/admin/v1/tenants/{tenant_id}";
const PAGE = 50;

export function useTenant(id: string) {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", ONE, { params: { path: { tenant_id: id } } }));
}

export type Transaction = Schemas["LedgerTransaction"];

export function useLedger(id: string, kind: string | undefined) {
  const path = `${ONE}/ledger` as const;
  return usePaged<Transaction, Schemas["LedgerPage"]>(path, { id, kind }, (client, after) =>
    client.GET(path, {
      params: { path: { tenant_id: id }, query: { kind, after, limit: PAGE } },
    }),
  );
}

export function useBalances(id: string) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery("get", `${ONE}/balances`, { params: { path: { tenant_id: id } } }),
  );
}

export type Grant = Schemas["CreditGrant"];

export function useGrants(id: string) {
  const path = `${ONE}/credits` as const;
  return usePaged<Grant, Schemas["CreditPage"]>(path, { id }, (client, after) =>
    client.GET(path, { params: { path: { tenant_id: id }, query: { after, limit: PAGE } } }),
  );
}

export type Profile = Schemas["BillingProfile"];

export function useProfile(id: string) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery("get", `${ONE}/billing_profile`, { params: { path: { tenant_id: id } } }),
  );
}

export function usePutProfile(id: string, onDone: () => void) {
  const path = `${ONE}/billing_profile` as const;
  return useChange(
    [path],
    (client, body: Schemas["FullProfileBody"]) =>
      client.PUT(path, { params: { path: { tenant_id: id } }, body }),
    onDone,
  );
}

/** This month by adapter: what it cost, and of which meters. */
export function useCostsByAdapter(id: string) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery("get", "/admin/v1/costs", {
      params: { query: { tenant: id, bucket: "1mo", group_by: "adapter,tier" } },
    }),
  );
}

/** This month's tokens by day. */
export function useTokens(id: string) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery("get", "/admin/v1/usage", {
      params: { query: { tenant: id, bucket: "1d", group_by: "tier" } },
    }),
  );
}

export function useEvents(id: string) {
  const { client } = useApi();
  const path = `${ONE}/events` as const;
  return useQuery({
    queryKey: [path, id],
    queryFn: async () =>
      required(
        (
          await client.GET(path, {
            params: { path: { tenant_id: id }, query: { limit: 8 } },
          })
        ).data,
      ),
  });
}
