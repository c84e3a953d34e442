/** One evaluation with its items, while it runs and after. */

import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { required, withErrors } from "../../api/client";
import { useApi } from "../../api/context";

const PAGE = 50;
const RUNNING_MS = 2_000;
const OPEN = ["queued", "running"];

export function useEvaluation(id: string) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/v1/evaluations/{evaluation_id}",
      { params: { path: { evaluation_id: id } } },
      {
        refetchInterval: ({ state }) =>
          state.data && OPEN.includes(state.data.state) ? RUNNING_MS : false,
      },
    ),
  );
}

export function useItems(id: string, isOver: boolean) {
  const { client } = useApi();
  return useInfiniteQuery({
    queryKey: ["get", "/v1/evaluations/{evaluation_id}/items", id, isOver],
    initialPageParam: null as number | null,
    queryFn: async ({ pageParam }) => {
      const query = { limit: PAGE, ...(pageParam === null ? {} : { after: pageParam }) };
      const { data } = await client.GET("/v1/evaluations/{evaluation_id}/items", {
        params: { path: { evaluation_id: id }, query },
      });
      return required(data);
    },
    getNextPageParam: (page) => (page.has_more ? (page.data.at(-1)?.no ?? null) : null),
  });
}

export function useCancel() {
  const { hooks } = useApi();
  const queries = useQueryClient();
  return hooks.useMutation("post", "/v1/evaluations/{evaluation_id}/cancel", {
    onSuccess: () => queries.invalidateQueries(),
  });
}
