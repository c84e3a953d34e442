/** What the playground asks of the server beside the answers. */

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type FetchClient, required, type Schemas } from "../../api/client";
import { useApi, useSession } from "../../api/context";
import { ApiError } from "../../api/errors";

export interface ModelOption {
  value: string;
  label: string;
  isBase: boolean;
}

const OFFERED = 20;

/** The first models by name with `q` in them, and for adapters each version and alias that can be asked. */
export function useModelOptions(q = "") {
  const { client } = useApi();
  const may = useSession().session?.place?.may ?? [];
  const name = q.split("@")[0] || undefined;
  const models = useQuery({
    queryKey: ["/v1/models", "options", name],
    queryFn: async () => {
      const query = { q: name, limit: OFFERED };
      return required((await client.GET("/v1/models", { params: { query } })).data).data;
    },
    placeholderData: keepPreviousData,
  });
  const adapters = useQuery({
    queryKey: ["/v1/adapters", "options", name],
    enabled: may.includes("adapters"),
    queryFn: async () => {
      const query = { q: name, sort: "name", limit: 2 * OFFERED }; // some cannot be asked
      return required((await client.GET("/v1/adapters", { params: { query } })).data).data;
    },
    placeholderData: keepPreviousData,
  });
  const found = models.data && optionsOf(models.data, adapters.data ?? []);
  const wanted = q.toLowerCase();
  return { ...models, options: found?.filter(({ value }) => value.toLowerCase().includes(wanted)) };
}

/** Those of these names that can be asked now. */
export function useAskable(names: readonly string[]) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["askable models", names],
    staleTime: Number.POSITIVE_INFINITY, // it is what a playground begins with
    queryFn: async () => {
      const answers = await Promise.all(names.map((name) => isAskable(client, name)));
      return names.filter((_, at) => answers[at]);
    },
  });
}

async function isAskable(client: FetchClient, model: string): Promise<boolean> {
  try {
    await client.GET("/v1/models/{model}", { params: { path: { model } } });
    return true;
  } catch (error) {
    if (error instanceof ApiError && [403, 404].includes(error.status)) return false;
    throw error;
  }
}

const ASKABLE = ["active", "deprecated"];

function optionsOf(models: Schemas["ModelCard"][], adapters: Schemas["Adapter"][]): ModelOption[] {
  const byName = new Map(adapters.map((adapter) => [adapter.name, adapter]));
  return models.flatMap(({ id, parent }): ModelOption[] => {
    if (!parent) return [{ value: id, label: id, isBase: true }];
    const adapter = byName.get(id);
    const aliases = adapter?.aliases.map(({ alias }) => `${id}@${alias}`) ?? [];
    const versions = adapter?.versions
      .filter(({ state }) => ASKABLE.includes(state))
      .map(({ version }) => `${id}@${version}`);
    return [id, ...aliases, ...(versions ?? [])].map((name) => ({
      value: name,
      label: name,
      isBase: false,
    }));
  });
}

const RECEIPT_TRIES = 12;

/** The receipt of a request, once it is in the books; null without an id or the right to see it. */
export function useReceipt(requestId: string | null) {
  const { client } = useApi();
  const may = useSession().session?.place?.may ?? [];
  return useQuery({
    queryKey: ["playground", "receipt", requestId],
    enabled: requestId !== null && may.includes("usage"),
    staleTime: Number.POSITIVE_INFINITY,
    // It is stored a moment after the last token.
    retry: (failures, error) =>
      failures < RECEIPT_TRIES && error instanceof ApiError && error.status === 404,
    retryDelay: 500,
    queryFn: async () => {
      const path = { request_id: requestId ?? "" };
      const { data } = await client.GET("/v1/requests/{request_id}", { params: { path } });
      return required(data);
    },
  });
}
