/** What the page about limits asks the API for. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../../api/client";
import { useApi } from "../../api/context";

export type Limits = Schemas["LimitsView"];

/** What a minute's limits have left changes by itself, and no event says so. */
const AGAIN_MS = 5_000;

export function useLimits() {
  const { client } = useApi();
  return useQuery({
    queryKey: ["/v1/limits"],
    queryFn: async () => required((await client.GET("/v1/limits")).data),
    refetchInterval: AGAIN_MS,
  });
}

/** The currency of budgets: that of the prices in force; null: there are none, or it is not known. */
export function useCurrency(isEnabled = true): string | null {
  const { client } = useApi();
  const limits = useQuery({
    queryKey: ["/v1/limits"],
    enabled: isEnabled,
    queryFn: async () => required((await client.GET("/v1/limits")).data),
  });
  return limits.data?.currency ?? null;
}
