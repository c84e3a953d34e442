/** What the search asks the API for, each list by its own `q`; only what the place may see. */

import { useQueries } from "@tanstack/react-query";
import { type FetchClient, required } from "../api/client";
import { useApi, useSession } from "../api/context";
import type { Place } from "../api/session";
import {
  adapterHits,
  type Hit,
  invoiceHits,
  keyHits,
  requestHits,
  tenantHits,
  tierHits,
} from "./model";

const LIMIT = 5;
const INVOICES = 60;

interface Source {
  group: string;
  /** Any of these scopes or roles opens it. */
  opens: readonly string[];
  ask: (client: FetchClient, q: string) => Promise<Hit[]>;
}

const TENANT: readonly Source[] = [
  {
    group: "Adapters",
    opens: ["adapters"],
    ask: async (client, q) =>
      adapterHits(
        required(
          (await client.GET("/v1/adapters", { params: { query: { q, limit: LIMIT } } })).data,
        ).data,
      ),
  },
  {
    group: "Requests",
    opens: ["usage"],
    ask: async (client, q) =>
      requestHits(
        required(
          (await client.GET("/v1/requests", { params: { query: { q, limit: LIMIT } } })).data,
        ).data,
        "/requests",
      ),
  },
  {
    group: "Keys",
    opens: ["keys"],
    ask: async (client, q) =>
      keyHits(
        required(
          (await client.GET("/v1/api_keys", { params: { query: { q, limit: LIMIT } } })).data,
        ).data,
      ),
  },
  {
    group: "Invoices",
    opens: ["usage"],
    ask: async (client, q) => {
      // One a month and currency: their list is short, and has no search.
      const params = { query: { limit: INVOICES } };
      const { data } = required((await client.GET("/v1/invoices", { params })).data);
      return invoiceHits(data, "/invoices", q).slice(0, LIMIT);
    },
  },
];

const ROLES = ["owner", "operator", "billing", "read_only"];

const OPERATOR: readonly Source[] = [
  {
    group: "Tenants",
    opens: ROLES,
    ask: async (client, q) => {
      const params = { query: { q, limit: LIMIT } };
      return tenantHits(required((await client.GET("/admin/v1/tenants", { params })).data).data);
    },
  },
  {
    group: "Adapters",
    opens: ["owner", "operator", "read_only"],
    ask: async (client, q) => {
      const params = { query: { q, limit: LIMIT } };
      const { data } = await client.GET("/admin/v1/engine/adapters", { params });
      return tierHits(required(data).data);
    },
  },
  {
    group: "Requests",
    opens: ROLES,
    ask: async (client, q) => {
      const params = { query: { q, limit: LIMIT } };
      const { data } = await client.GET("/admin/v1/requests", { params });
      return requestHits(required(data).data, "/operator/requests");
    },
  },
  {
    group: "Invoices",
    opens: ROLES,
    ask: async (client, q) => {
      const params = { query: { q, limit: LIMIT } };
      const { data } = await client.GET("/admin/v1/invoices", { params });
      return invoiceHits(required(data).data, "/operator/invoices", null);
    },
  },
];

export interface Group {
  name: string;
  hits: Hit[];
}

export interface Found {
  groups: Group[];
  isSearching: boolean;
  /** Names of what could not be searched. */
  failed: string[];
}

export function sourcesOf(place: Place | null): readonly Source[] {
  if (place === null) return [];
  const sources = place.role === "admin" ? OPERATOR : TENANT;
  return sources.filter(({ opens }) => opens.some((each) => place.may.includes(each)));
}

/** Asks every list at once; an empty text asks none. */
export function useSearch(text: string): Found {
  const { client } = useApi();
  const place = useSession().session?.place ?? null;
  const sources = sourcesOf(place);
  const answers = useQueries({
    queries: sources.map(({ group, ask }) => ({
      queryKey: ["search", group, text],
      queryFn: () => ask(client, text),
      enabled: text !== "",
      retry: false,
      placeholderData: (before: Hit[] | undefined) => before,
    })),
  });
  if (text === "") return { groups: [], isSearching: false, failed: [] };
  const groups = sources.map(({ group }, at) => ({ name: group, hits: answers[at]?.data ?? [] }));
  return {
    groups: groups.filter(({ hits }) => hits.length > 0),
    isSearching: answers.some(({ isFetching }) => isFetching),
    failed: sources.filter((_, at) => answers[at]?.isError).map(({ group }) => group),
  };
}
