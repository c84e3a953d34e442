/** What the playground asks of the server beside the answers. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas, withErrors } from "../../api/client";
import { useApi, useSession } from "../../api/context";
import { ApiError } from "../../api/errors";

export interface ModelOption {
  value: string;
  label: string;
}

/** Models by name, and for adapters each version and alias that can be asked. */
export function useModelOptions() {
  const { hooks } = useApi();
  const may = useSession().session?.place?.may ?? [];
  const models = withErrors(hooks.useQuery("get", "/v1/models"));
  const adapters = withErrors(
    hooks.useQuery(
      "get",
      "/v1/adapters",
      { params: { query: { limit: 100 } } },
      { enabled: may.includes("adapters") },
    ),
  );
  const options = models.data && optionsOf(models.data.data, adapters.data?.data ?? []);
  return { ...models, options };
}

const ASKABLE = ["active", "deprecated"];

function optionsOf(models: Schemas["ModelCard"][], adapters: Schemas["Adapter"][]): ModelOption[] {
  const byName = new Map(adapters.map((adapter) => [adapter.name, adapter]));
  return models.flatMap(({ id, parent }) => {
    if (!parent) return [{ value: id, label: `${id} (base model)` }];
    const adapter = byName.get(id);
    const aliases = adapter?.aliases.map(({ alias }) => `${id}@${alias}`) ?? [];
    const versions = adapter?.versions
      .filter(({ state }) => ASKABLE.includes(state))
      .map(({ version }) => `${id}@${version}`);
    return [id, ...aliases, ...(versions ?? [])].map((name) => ({ value: name, label: name }));
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
