/** Evaluations: the list, one that is asked for, and which adapters there are to ask. */

import { keepPreviousData, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { required } from "../../api/client";
import { useApi } from "../../api/context";

const PAGE = 50;
const RUNNING_MS = 3_000;
const OPEN = ["queued", "running"];

export function useEvaluations() {
  const { client } = useApi();
  return useInfiniteQuery({
    queryKey: ["get", "/v1/evaluations", "pages"],
    initialPageParam: null as string | null,
    placeholderData: keepPreviousData,
    queryFn: async ({ pageParam }) => {
      const query = { limit: PAGE, ...(pageParam === null ? {} : { after: pageParam }) };
      const { data } = await client.GET("/v1/evaluations", { params: { query } });
      return required(data);
    },
    getNextPageParam: (page) => (page.has_more ? page.last_id : null),
    refetchInterval: ({ state }) =>
      state.data?.pages.some((page) => page.data.some((each) => OPEN.includes(each.state)))
        ? RUNNING_MS
        : false,
  });
}

const OFFERED = 20;

/** The newest adapters with `q` in their name. */
export function useAdaptersNamed(q: string) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["/v1/adapters", "to evaluate", q],
    queryFn: async () => {
      const query = { limit: OFFERED, q: q || undefined };
      return required((await client.GET("/v1/adapters", { params: { query } })).data).data;
    },
    placeholderData: keepPreviousData,
  });
}

/** The adapter of that name; none without a name. */
export function useAdapterNamed(name: string | null) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["/v1/adapters", "evaluated", name],
    enabled: name !== null,
    queryFn: async () => {
      const path = { name: name ?? "" };
      return required((await client.GET("/v1/adapters/{name}", { params: { path } })).data);
    },
  });
}

export function useCreate() {
  const { hooks } = useApi();
  return hooks.useMutation("post", "/v1/evaluations");
}
