/** What the list of adapters asks the server for: a page after the other, searched and sorted there. */

import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { required } from "../../api/client";
import { useApi } from "../../api/context";
import { isPending } from "./model";

const PAGE = 50;
const POLL_MS = 2_000;
/** Traffic and cost move with every request; the live stream tells of versions alone. */
const TRAFFIC_MS = 15_000;
const PAGES_KEPT_NEW = 4;

export function useAdapterPages(q: string, sort: string) {
  const { client } = useApi();
  return useInfiniteQuery({
    queryKey: ["get", "/v1/adapters", "pages", q, sort],
    initialPageParam: undefined as string | undefined,
    queryFn: async ({ pageParam, signal }) => {
      const query = { q: q || undefined, sort, after: pageParam, limit: PAGE };
      const { data } = await client.GET("/v1/adapters", { params: { query }, signal });
      return required(data);
    },
    getNextPageParam: ({ has_more, last_id }) => (has_more ? (last_id ?? undefined) : undefined),
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => {
      const pages = state.data?.pages ?? [];
      if (pages.length > PAGES_KEPT_NEW) return false; // each would be asked for again
      const isWaiting = pages.some(({ data }) =>
        data.some(({ versions }) => versions.some((version) => isPending(version.state))),
      );
      return isWaiting ? POLL_MS : TRAFFIC_MS;
    },
  });
}
