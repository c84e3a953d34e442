/** Evaluations: the list, one that is asked for, and which adapters there are to ask. */

import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { required, withErrors } from "../../api/client";
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

/** Adapters with versions that can be asked. */
export function useAskable() {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", "/v1/adapters", { params: { query: { limit: 100 } } }));
}

export function useCreate() {
  const { hooks } = useApi();
  return hooks.useMutation("post", "/v1/evaluations");
}
