/** What the adapters page asks the API for. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { FetchClient, Schemas } from "../../api/client";
import { useApi } from "../../api/context";

export type Adapter = Schemas["Adapter"];
export type AdapterVersion = Schemas["AdapterVersion"];
export type VersionState = AdapterVersion["state"];

const PAGE = 100;
const POLL_MS = 1000;

export function isPending(state: VersionState): boolean {
  return state === "quarantined" || state === "validating";
}

async function listAll(client: FetchClient): Promise<Adapter[]> {
  const all: Adapter[] = [];
  let after: string | undefined;
  for (;;) {
    const { data } = await client.GET("/v1/adapters", {
      params: { query: { limit: PAGE, after } },
    });
    if (data === undefined) return all;
    all.push(...data.data);
    if (!data.has_more || data.last_id === null) return all;
    after = data.last_id;
  }
}

/** All adapters, asked for again each second while one of them is still being checked. */
export function useAdapters() {
  const { client } = useApi();
  return useQuery({
    queryKey: ["adapters"],
    queryFn: () => listAll(client),
    refetchInterval: ({ state }) =>
      state.data?.some((adapter) => isPending(adapter.state)) ? POLL_MS : false,
  });
}

/** One version, asked for again until the server has decided about it. */
export function useVersion(name: string, version: number | null) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["adapters", name, version],
    enabled: version !== null,
    queryFn: async () => {
      const { data } = await client.GET("/v1/adapters/{name}/versions/{version}", {
        params: { path: { name, version: version ?? 0 } },
      });
      return data;
    },
    refetchInterval: ({ state }) => (state.data && !isPending(state.data.state) ? false : POLL_MS),
  });
}

export interface DeleteTarget {
  name: string;
  version: number | null; // null: the adapter with all its versions
}

export function useDelete(onDone: () => void) {
  const { client } = useApi();
  const queries = useQueryClient();
  return useMutation({
    mutationFn: async ({ name, version }: DeleteTarget) => {
      if (version === null)
        await client.DELETE("/v1/adapters/{name}", { params: { path: { name } } });
      else
        await client.DELETE("/v1/adapters/{name}/versions/{version}", {
          params: { path: { name, version } },
        });
    },
    onSuccess: async () => {
      onDone();
      await queries.invalidateQueries({ queryKey: ["adapters"] });
    },
  });
}
