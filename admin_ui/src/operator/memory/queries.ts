/** What the memory map asks the API for, and how it follows the live stream. */

import {
  keepPreviousData,
  useInfiniteQuery,
  useMutation,
  useQueryClient,
} from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { required, withErrors } from "../../api/client";
import { useApi } from "../../api/context";
import { useLive, useLiveSource } from "../../live/context";
import { followed, readPagesEvent, type Snapshot, snapshotOf } from "./model";

const POLL_MS = 2_000;
/** While the live stream tells the differences, the whole is asked for only now and then. */
const HEAL_MS = 60_000;
const HISTORY_MS = 10_000;

/** The arena now; `forTenant`: with what that tenant's need would push out. */
export function useArena(forTenant: string | null, isShown: boolean) {
  const { hooks } = useApi();
  const { status } = useLive();
  const isFollowed = status === "live" && forTenant === null;
  const query = withErrors(
    hooks.useQuery(
      "get",
      "/admin/v1/engine/pages",
      { params: { query: forTenant === null ? {} : { for_tenant: forTenant } } },
      { enabled: isShown, refetchInterval: isFollowed ? HEAL_MS : POLL_MS },
    ),
  );
  const [snapshot, setSnapshot] = useState<Snapshot | null>(null);
  const { data, refetch } = query;
  useEffect(() => setSnapshot(data ? snapshotOf(data) : null), [data]);
  const event = useLiveSource("pages", readPagesEvent);
  useEffect(() => {
    if (event === null || !isFollowed || !isShown) return;
    setSnapshot((before) => {
      if (before === null) return before;
      const after = followed(before, event);
      if (after === null) void refetch();
      return after ?? before;
    });
  }, [event, isFollowed, isShown, refetch]);
  return { ...query, snapshot };
}

/** Pages by kind over the last hour. */
export function useHistory() {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery("get", "/admin/v1/engine/pages/history", undefined, {
      refetchInterval: HISTORY_MS,
    }),
  );
}

/** The arena as it was. */
export function usePast(at: number | null) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/admin/v1/engine/pages/history",
      { params: { query: { at: at ?? 0 } } },
      { enabled: at !== null, staleTime: Number.POSITIVE_INFINITY, placeholderData: (old) => old },
    ),
  );
}

export type Tier = "device" | "host" | "shared" | "store";

/** All adapters of one tier, the newest first. */
export function usePlaces(tier: Tier, q: string) {
  const { client } = useApi();
  return useInfiniteQuery({
    queryKey: ["get", "/admin/v1/engine/adapters", tier, q],
    initialPageParam: null as string | null,
    queryFn: async ({ pageParam }) => {
      const query = {
        tier,
        limit: 100,
        ...(q ? { q } : {}),
        ...(pageParam ? { after: pageParam } : {}),
      };
      return required((await client.GET("/admin/v1/engine/adapters", { params: { query } })).data);
    },
    getNextPageParam: (page) => (page.has_more ? (page.last_id ?? null) : null),
    refetchInterval: HISTORY_MS,
    placeholderData: keepPreviousData,
  });
}

export type Act = { what: "pin" | "unpin" | "evict"; id: string; label: string };

export function useAct(onDone: () => void) {
  const { client } = useApi();
  const queries = useQueryClient();
  return useMutation({
    mutationFn: async ({ what, id }: Act) => {
      const params = { path: { version_id: id } };
      if (what === "evict")
        return required(
          (await client.POST("/admin/v1/adapters/{version_id}/evict", { params })).data,
        );
      const path = "/admin/v1/adapters/{version_id}/pin";
      return required(
        what === "pin"
          ? (await client.POST(path, { params })).data
          : (await client.DELETE(path, { params })).data,
      );
    },
    onSuccess: onDone,
    onSettled: () =>
      queries.invalidateQueries({
        predicate: ({ queryKey }) =>
          queryKey.some((part) => typeof part === "string" && part.includes("/engine/")),
      }),
  });
}
