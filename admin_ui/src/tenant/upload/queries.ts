/** What the server says of uploads and of the versions that they become. */

import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { required, withErrors } from "../../api/client";
import { useApi, useSession } from "../../api/context";
import { ApiError } from "../../api/errors";
import { credentialsOf } from "../../api/session";
import { type Adapter, DEFAULT_ALIAS, isPending } from "../adapters/model";
import { type Candidate, type Parcel, pack } from "./folder";
import { askPreflight } from "./send";

const POLL_MS = 1_000;

/** What will be sent of a folder, and what its config alone gives away. */
export function useParcel(of: Candidate | null) {
  return useQuery({
    queryKey: [
      "parcel",
      of?.folder,
      of?.config.lastModified,
      of?.config.size,
      of?.draftLayer?.size,
    ],
    enabled: of !== null,
    queryFn: () => (of === null ? null : pack(of)),
    retry: false,
    gcTime: 0,
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** Whether it would be accepted under this name: config and header are sent, no weights. */
export function usePreflight(name: string, parcel: Parcel | null) {
  const { session } = useSession();
  return useQuery({
    queryKey: [
      "preflight",
      name,
      parcel?.weights.whole.size,
      parcel?.config.size,
      parcel?.draftLayer?.whole.size,
    ],
    enabled: name !== "" && parcel !== null,
    queryFn: ({ signal }) =>
      parcel === null ? null : askPreflight(credentialsOf(session), name, parcel, signal),
    placeholderData: keepPreviousData,
    retry: false,
    gcTime: 0,
  });
}

/** The adapter that has this name; null: there is none, or nothing of it serves. */
export function useExisting(name: string): Adapter | null {
  const { client } = useApi();
  const found = useQuery({
    queryKey: ["get", "/v1/adapters/{name}", "of an upload", name],
    enabled: name !== "",
    queryFn: async () => {
      try {
        const { data } = await client.GET("/v1/adapters/{name}", { params: { path: { name } } });
        return required(data);
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      }
    },
    retry: false,
  });
  const adapter = found.data ?? null;
  return adapter !== null && adapter.serving.versions.length > 0 ? adapter : null;
}

/** What the name means now it goes on to mean, whatever versions come: its alias says so. */
export function useKeepServing() {
  const { client } = useApi();
  const queries = useQueryClient();
  return useMutation({
    mutationFn: async ({ name, serving }: Adapter) => {
      await client.PUT("/v1/adapters/{name}/aliases/{alias}", {
        params: { path: { name, alias: DEFAULT_ALIAS } },
        body: {
          targets: serving.versions.map(({ version, weight }) => ({ version, weight })),
          reason: "a new version is kept inactive",
        },
      });
    },
    onSuccess: () => queries.invalidateQueries({ queryKey: ["get", "/v1/adapters/{name}"] }),
  });
}

/** One version, asked for again until the server has decided about it. */
export function useVersion(name: string, version: number | null) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/v1/adapters/{name}/versions/{version}",
      { params: { path: { name, version: version ?? 0 } } },
      {
        enabled: version !== null,
        refetchInterval: ({ state }) =>
          state.data && !isPending(state.data.state) ? false : POLL_MS,
      },
    ),
  );
}
