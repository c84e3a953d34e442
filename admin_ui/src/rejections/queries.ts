/** What the pages of rejected calls ask the API: a tenant's own, or everybody's. */

import type { Schemas } from "../api/client";
import { usePaged } from "../api/paged";
import type { Query, RejectedCall } from "./model";

export type Side = "tenant" | "operator";

const PAGE = 100;

export function useRejectedCalls(side: Side, query: Query, tenant?: string) {
  const path = side === "tenant" ? "/v1/rejected_calls" : "/admin/v1/rejected_calls";
  return usePaged<RejectedCall, Schemas["RejectedCallPage"]>(
    path,
    { ...query, tenant },
    (client, after) =>
      side === "tenant"
        ? client.GET("/v1/rejected_calls", { params: { query: { ...query, after, limit: PAGE } } })
        : client.GET("/admin/v1/rejected_calls", {
            params: { query: { ...query, tenant, after, limit: PAGE } },
          }),
  );
}
