/** What the page about limits asks the API for. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../../api/client";
import { useApi, useSession } from "../../api/context";

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

/** The currency of budgets: that of the prices in force; null: not known, or not to be seen. */
export function useCurrency(): string | null {
  const { client } = useApi();
  const may = useSession().session?.place?.may ?? [];
  const prices = useQuery({
    queryKey: ["/v1/prices"],
    enabled: may.includes("usage"),
    queryFn: async () => required((await client.GET("/v1/prices")).data).data,
  });
  return prices.data?.find(({ status }) => status === "in_force")?.currency ?? null;
}
