/** What pages ask the API about requests, of a tenant's own or, for the operator, of any. */

import { useInfiniteQuery, useMutation, useQuery } from "@tanstack/react-query";

import { required, type Schemas } from "../api/client";
import { useApi } from "../api/context";
import { ApiError } from "../api/errors";
import { save } from "../components/download";
import type { Query } from "./model";
import { type Verdict, verify } from "./verify";

export type Side = "tenant" | "operator";

/** The API's most. */
const PAGE = 100;

const listPath = (side: Side) => (side === "tenant" ? "/v1/requests" : "/admin/v1/requests");

function useRequestPage(side: Side, tenant: string | undefined) {
  const { client } = useApi();
  return async (query: Query) =>
    required(
      side === "tenant"
        ? (await client.GET("/v1/requests", { params: { query } })).data
        : (await client.GET("/admin/v1/requests", { params: { query: { ...query, tenant } } }))
            .data,
    );
}

/**
 * Requests page by page. The live stream does not touch what was scrolled through: `useNewest` says
 * that there are newer ones.
 */
export function useRequests(side: Side, query: Query, tenant?: string) {
  const page = useRequestPage(side, tenant);
  return useInfiniteQuery({
    queryKey: ["request pages", side, tenant, query],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam: after }) => page({ ...query, after, limit: PAGE }),
    getNextPageParam: (found) => (found.has_more ? (found.last_id ?? undefined) : undefined),
    staleTime: 60_000,
  });
}

/** The id of the newest request of a search, told anew as the live stream says; null: none. */
export function useNewest(side: Side, query: Query, tenant?: string) {
  const page = useRequestPage(side, tenant);
  const isByTime = query.q === undefined && (query.sort ?? "newest") === "newest";
  return useQuery({
    queryKey: [listPath(side), "newest", tenant, query],
    enabled: isByTime,
    queryFn: async () => (await page({ ...query, limit: 1 })).first_id,
  }).data;
}

/** The receipt of one request, with its text as it was signed. */
export function useReceipt(side: Side, request_id: string) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["receipt", side, request_id],
    queryFn: async () => {
      const asked = { params: { path: { request_id } }, parseAs: "text" as const };
      const { data } =
        side === "tenant"
          ? await client.GET("/v1/requests/{request_id}", asked)
          : await client.GET("/admin/v1/requests/{request_id}", asked);
      return required<string>(data);
    },
    // What has just ended may take a second to be in the books.
    retry: (failures, error) => {
      return failures < 4 && error instanceof ApiError && error.status === 404;
    },
    retryDelay: 700,
    staleTime: Number.POSITIVE_INFINITY, // what has ended does not change
  });
}

/** What a request's key is called: the list has names, the signed receipt has not. */
export function useKeyName(side: Side, request_id: string): string | null {
  const page = useRequestPage(side, undefined);
  const { data } = useQuery({
    queryKey: ["key of a request", side, request_id],
    queryFn: async () => (await page({ q: request_id, limit: 1 })).data[0]?.api_key_name ?? null,
    staleTime: Number.POSITIVE_INFINITY,
  });
  return data ?? null;
}

export interface WaitPart {
  cause: Schemas["WaitPartView"]["cause"];
  ms: number;
  /** Whose doing it was; told to the operator only. */
  whose: string | null;
}

export interface Waits {
  sequence: number;
  /** null: not kept, of brief waits and old ones. */
  parts: WaitPart[] | null;
}

/** What each sequence of a request waited for. */
export function useWaits(side: Side, request_id: string) {
  const { client } = useApi();
  const params = { path: { request_id } };
  return useQuery({
    queryKey: ["waits of a request", side, request_id],
    queryFn: async (): Promise<Waits[]> => {
      if (side === "tenant") {
        const { data } = await client.GET("/v1/requests/{request_id}/waits", { params });
        return required(data).sequences.map(({ sequence, parts }) => ({
          sequence,
          parts: parts?.map((part) => ({ ...part, whose: null })) ?? null,
        }));
      }
      const { data } = await client.GET("/admin/v1/requests/{request_id}/waits", { params });
      return required(data).sequences.map(({ sequence, parts }) => ({
        sequence,
        parts: parts?.map((part) => ({ ...part, whose: part.other_name ?? part.other_id })) ?? null,
      }));
    },
    retry: false,
    staleTime: 60_000,
  });
}

export function saveReceipt(text: string, id: string): void {
  save(new Blob([text], { type: "application/json" }), `${id}.json`);
}

/** Checks a receipt by the server's public keys. */
export function useVerdict() {
  const { client } = useApi();
  return useMutation<Verdict, Error, string>({
    mutationFn: async (text) => {
      const { data } = await client.GET("/.well-known/tenora-keys.json");
      return verify(text, required(data).keys);
    },
  });
}

/** Prompt and answers of a request; null: they were not kept. */
export function useContents(request_id: string, isAllowed: boolean) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["kept contents", request_id],
    enabled: isAllowed,
    queryFn: async () => {
      try {
        const { data } = await client.GET("/v1/requests/{request_id}/contents", {
          params: { path: { request_id } },
        });
        return required(data);
      } catch (error) {
        if (
          error instanceof ApiError &&
          error.code !== "contents_unreadable" &&
          error.status === 404
        )
          return null;
        throw error;
      }
    },
    staleTime: 60_000,
  });
}

/** Names for the filters: adapters of a tenant's own. */
export function useAdapterNames(side: Side) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["adapter names of filters"],
    enabled: side === "tenant",
    queryFn: async () => {
      const { data } = await client.GET("/v1/adapters", { params: { query: { limit: 100 } } });
      return required(data).data.map(({ name }) => name);
    },
    retry: false,
    staleTime: 60_000,
  });
}

/** The operator's tenants by a part of their name or id. */
export function useTenantNames(isOperator: boolean, q: string) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["tenant names of filters", q],
    enabled: isOperator,
    queryFn: async () => {
      const { data } = await client.GET("/admin/v1/tenants", {
        params: { query: { limit: 100, q: q || undefined } },
      });
      return new Map(required(data).data.map(({ id, name }) => [id, name]));
    },
    placeholderData: (before) => before,
    staleTime: 60_000,
  });
}
