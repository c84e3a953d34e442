/** What the server says of uploads and of the versions that they become. */

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { withErrors } from "../../api/client";
import { useApi, useSession } from "../../api/context";
import { credentialsOf } from "../../api/session";
import { isPending } from "../adapters/model";
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
