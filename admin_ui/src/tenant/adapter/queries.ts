/** What the page of one adapter asks the server for, and what it may change. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { withErrors } from "../../api/client";
import { useApi } from "../../api/context";
import { isPending } from "../adapters/model";

const POLL_MS = 1_000;
const PROBE_POLL_MS = 5_000;
/** Traffic and cost move with every request; the live stream tells of versions alone. */
const TRAFFIC_MS = 15_000;

export function useAdapter(name: string) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/v1/adapters/{name}",
      { params: { path: { name } } },
      {
        refetchInterval: ({ state }) =>
          state.data?.versions.some((version) => isPending(version.state)) ? POLL_MS : TRAFFIC_MS,
      },
    ),
  );
}

/** What the asking beside the base model has found, as far as it has come. */
export function useReport(name: string, version: number) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/v1/adapters/{name}/versions/{version}/report",
      { params: { path: { name, version } } },
      {
        refetchInterval: ({ state }) => (state.data?.probe === "waiting" ? PROBE_POLL_MS : false),
      },
    ),
  );
}

/** What is to become of a version, or (version null) of the adapter with all of them. */
export type Change =
  | { kind: "delete"; version: number | null }
  | { kind: "deprecated" | "active" | "revoked"; version: number };

export function useChange(name: string, onDone: (change: Change) => void) {
  const { client } = useApi();
  const queries = useQueryClient();
  return useMutation({
    mutationFn: async ({ change, reason }: { change: Change; reason: string }) => {
      const { kind, version } = change;
      if (version === null) {
        await client.DELETE("/v1/adapters/{name}", { params: { path: { name } } });
        return change;
      }
      const params = { path: { name, version } };
      if (kind === "delete")
        await client.DELETE("/v1/adapters/{name}/versions/{version}", { params });
      else
        await client.PATCH("/v1/adapters/{name}/versions/{version}", {
          params,
          body: { state: kind, reason: reason.trim() || null },
        });
      return change;
    },
    onSuccess: async (change) => {
      onDone(change);
      await queries.invalidateQueries({ queryKey: ["get", "/v1/adapters"] });
      if (change.version !== null)
        await queries.invalidateQueries({ queryKey: ["get", "/v1/adapters/{name}"] });
    },
  });
}
