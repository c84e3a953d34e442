/** The five questions behind the usage page, asked at once for one month. */

import { useQuery } from "@tanstack/react-query";
import type { FetchClient, Schemas } from "../../api/client";
import { useApi } from "../../api/context";
import { bounds, type Month } from "./month";

export interface MonthUsage {
  total: Schemas["UsageResult"] | null;
  cost: Schemas["CostResult"] | null;
  days: Schemas["UsageBucket"][];
  byAdapter: Schemas["UsageResult"][];
  costByAdapter: Schemas["CostResult"][];
}

async function fetchMonth(client: FetchClient, month: Month): Promise<MonthUsage> {
  const { start, end } = bounds(month);
  const usage = (bucket: "1d" | "1mo", group_by?: string) =>
    client.GET("/v1/usage", { params: { query: { start, end, bucket, group_by, limit: 31 } } });
  const costs = (group_by?: string) =>
    client.GET("/v1/costs", { params: { query: { start, end, bucket: "1mo", group_by } } });
  const [total, days, byAdapter, cost, costByAdapter] = await Promise.all([
    usage("1mo"),
    usage("1d"),
    usage("1mo", "adapter"),
    costs(),
    costs("adapter"),
  ]);
  return {
    total: total.data?.data[0]?.results[0] ?? null,
    cost: cost.data?.data[0]?.results[0] ?? null,
    days: days.data?.data ?? [],
    byAdapter: byAdapter.data?.data[0]?.results ?? [],
    costByAdapter: costByAdapter.data?.data[0]?.results ?? [],
  };
}

export function useMonthUsage(month: Month) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["usage", month.year, month.month],
    queryFn: () => fetchMonth(client, month),
    refetchInterval: 10_000,
  });
}
