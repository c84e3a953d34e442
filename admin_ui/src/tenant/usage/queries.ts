/** What the usage page asks for: one question for a chart and its table. */

import { useMutation, useQuery } from "@tanstack/react-query";
import { required } from "../../api/client";
import { useApi } from "../../api/context";
import { csv, save } from "../../components/download";
import { type Bucket, csvRows, type Group, type Measure, TOP, type Window } from "./model";

/** More than any window has. */
const BUCKETS = 744;

function asked({ startS, endS, bucket }: Window, by: Group) {
  return {
    start: new Date(startS * 1000).toISOString(),
    end: new Date(endS * 1000).toISOString(),
    bucket,
    group_by: by === "none" ? undefined : by,
    include: "costs" as const,
    limit: BUCKETS,
  };
}

export function useUsage(window: Window, by: Group, measure: Measure) {
  const { client } = useApi();
  const query = { ...asked(window, by), top: TOP, top_by: measure };
  return useQuery({
    queryKey: ["/v1/usage", query],
    queryFn: async () => required((await client.GET("/v1/usage", { params: { query } })).data),
  });
}

/** Every group of the window, not the greatest alone, as a file. */
export function useUsageFile(window: Window, by: Group, keys: ReadonlyMap<string, string>) {
  const { client } = useApi();
  return useMutation({
    mutationFn: async () => {
      const buckets: Bucket[] = [];
      let page: string | undefined;
      do {
        const query = { ...asked(window, by), page };
        const found = required((await client.GET("/v1/usage", { params: { query } })).data);
        buckets.push(...found.data);
        page = found.next_page ?? undefined;
      } while (page !== undefined);
      const day = new Date(window.startS * 1000).toISOString().slice(0, 10);
      const text = csv(csvRows(buckets, by, keys));
      save(new Blob([text], { type: "text/csv" }), `usage-by-${by}-from-${day}.csv`);
    },
  });
}

/** What keys are called, for who may see them; of others their ids stand. */
export function useKeyNames(isAllowed: boolean) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["names of api_keys"],
    enabled: isAllowed,
    queryFn: async () => {
      const { data } = await client.GET("/v1/api_keys", { params: { query: { limit: 100 } } });
      return new Map(required(data).data.map(({ id, name }) => [id, name]));
    },
    staleTime: 60_000,
  });
}
