/** What the page of the account's budget, and those that show it, ask the API for. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../../api/client";
import { useApi } from "../../api/context";
import { useChange } from "../../api/paged";

export type AccountBudget = Schemas["AccountBudget"];
export type BudgetBody = Schemas["AccountBudgetBody"];

const OWN = "/v1/budget";
const THEIRS = "/admin/v1/tenants/{tenant_id}/budget";
const TOUCHED = ["/budget", "/v1/limits", "/v1/events"];

/** One's own; of `tenant`, for the operator. */
export function useAccountBudget(tenant: string | null = null, isEnabled = true) {
  const { client } = useApi();
  return useQuery({
    queryKey: tenant === null ? [OWN] : [THEIRS, tenant],
    enabled: isEnabled,
    queryFn: async () =>
      required(
        tenant === null
          ? (await client.GET(OWN)).data
          : (await client.GET(THEIRS, { params: { path: { tenant_id: tenant } } })).data,
      ),
  });
}

export function usePutBudget(onDone: () => void) {
  return useChange(TOUCHED, (client, body: BudgetBody) => client.PUT(OWN, { body }), onDone);
}

export function useDeleteBudget(onDone: () => void) {
  return useChange<void, Schemas["Deleted"]>(TOUCHED, (client) => client.DELETE(OWN), onDone);
}
