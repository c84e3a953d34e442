/** An adapter's versions and one of its aliases: what it means, its roll-out, history and shadow. */

import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { required, type Schemas, withErrors } from "../../../api/client";
import { useApi } from "../../../api/context";
import { ApiError } from "../../../api/errors";
import type { Range } from "../../../components/range";

/** How often the numbers of a roll-out that runs are asked for. The worker judges every 2 s. */
const RUNNING_MS = 3_000;
const HISTORY = 50;

/** The roll-out that runs, else the last; null where there was none. */
export function useRollout(name: string, alias: string) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["get", "/v1/adapters/{name}/aliases/{alias}/rollout", name, alias],
    queryFn: async (): Promise<Schemas["Rollout"] | null> => {
      try {
        const path = { name, alias };
        const { data } = await client.GET("/v1/adapters/{name}/aliases/{alias}/rollout", {
          params: { path },
        });
        return required(data);
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      }
    },
    refetchInterval: ({ state }) => (state.data?.state === "running" ? RUNNING_MS : false),
  });
}

/** The changes of an alias; none of one that is not there yet. */
export function useHistory(name: string, alias: string) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["get", "/v1/adapters/{name}/aliases/{alias}/history", name, alias],
    queryFn: async (): Promise<Schemas["AliasChange"][]> => {
      try {
        const { data } = await client.GET("/v1/adapters/{name}/aliases/{alias}/history", {
          params: { path: { name, alias }, query: { limit: HISTORY } },
        });
        return required(data).data;
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return [];
        throw error;
      }
    },
  });
}

export function useShadow(name: string, alias: string, isKnown: boolean) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/v1/adapters/{name}/aliases/{alias}/shadow",
      { params: { path: { name, alias }, query: { limit: 10 } } },
      { enabled: isKnown },
    ),
  );
}

/** Finished requests of the adapter by version, how they ended and how long the first token took. */
export function useTraffic(adapter: string, range: Range) {
  const { hooks } = useApi();
  const query = {
    metric: "finished,ended,ttft",
    group_by: "version",
    adapter,
    start: new Date(range.startS * 1000).toISOString(),
    end: new Date(range.endS * 1000).toISOString(),
  };
  return withErrors(
    hooks.useQuery(
      "get",
      "/v1/timeseries",
      { params: { query } },
      { placeholderData: keepPreviousData },
    ),
  );
}

/** The newest evaluations of this adapter that have ended. */
export function useEvaluationsOf(adapter: string) {
  const { hooks } = useApi();
  const all = withErrors(
    hooks.useQuery("get", "/v1/evaluations", { params: { query: { limit: 50 } } }),
  );
  const ended = all.data?.data.filter(
    (each) => each.adapter === adapter && each.state === "completed",
  );
  return { ...all, ended };
}

/** What changes an alias; each makes everything shown of it old. */
export function useAliasChanges(name: string, alias: string) {
  const { hooks } = useApi();
  const queries = useQueryClient();
  const path = { name, alias };
  const onSuccess = () =>
    queries.invalidateQueries({
      predicate: ({ queryKey }) =>
        queryKey.some((part) => typeof part === "string" && part.startsWith("/v1/adapters/{name}")),
    });
  const at = "/v1/adapters/{name}/aliases/{alias}";
  return {
    path,
    put: hooks.useMutation("put", at, { onSuccess }),
    rollBack: hooks.useMutation("post", `${at}/rollback`, { onSuccess }),
    begin: hooks.useMutation("post", `${at}/rollout`, { onSuccess }),
    cancel: hooks.useMutation("post", `${at}/rollout/cancel`, { onSuccess }),
  };
}

export type AliasChanges = ReturnType<typeof useAliasChanges>;
