/** What several of the operator's pages ask the API for. */

import { useApi } from "../api/context";

/** undefined: it is not known yet, or there is no such tenant any more. */
export function useTenantName(tenant_id: string): string | undefined {
  const { hooks } = useApi();
  const { data } = hooks.useQuery(
    "get",
    "/admin/v1/tenants/{tenant_id}",
    { params: { path: { tenant_id } } },
    { staleTime: 300_000, retry: false },
  );
  return data?.name;
}
