/** What the pages about keys ask the API for: a tenant's own, or a tenant's for the operator. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FetchClient, required, type Schemas } from "../../api/client";
import { useApi } from "../../api/context";
import type { ApiKey } from "./terms";

/** The tenant whose keys the operator looks at; null: one's own. */
export type Owner = string | null;
export type NewApiKey = Schemas["NewApiKey"];

const PAGE = 100;

async function listAll(client: FetchClient, owner: Owner): Promise<ApiKey[]> {
  const all: ApiKey[] = [];
  let after: string | undefined;
  for (;;) {
    const query = { limit: PAGE, after };
    const { data } =
      owner === null
        ? await client.GET("/v1/api_keys", { params: { query } })
        : await client.GET("/admin/v1/tenants/{tenant_id}/api_keys", {
            params: { path: { tenant_id: owner }, query },
          });
    if (data === undefined) return all;
    all.push(...data.data);
    if (!data.has_more || !data.last_id) return all;
    after = data.last_id;
  }
}

export function useKeys(owner: Owner) {
  const { client } = useApi();
  return useQuery({ queryKey: ["keys", owner], queryFn: () => listAll(client, owner) });
}

function useKeyMutation<Input, Output>(
  mutationFn: (client: FetchClient, input: Input) => Promise<Output>,
  onSuccess?: (output: Output) => void,
) {
  const queries = useQueryClient();
  const { client } = useApi();
  return useMutation({
    mutationFn: (input: Input) => mutationFn(client, input),
    onSuccess: async (output) => {
      await queries.invalidateQueries({ queryKey: ["keys"] });
      onSuccess?.(output);
    },
  });
}

export function useCreateKey(owner: Owner, onDone: (key: NewApiKey) => void) {
  return useKeyMutation(async (client, body: Schemas["ApiKeyCreate"]) => {
    const { data } =
      owner === null
        ? await client.POST("/v1/api_keys", { body })
        : await client.POST("/admin/v1/tenants/{tenant_id}/api_keys", {
            params: { path: { tenant_id: owner } },
            body,
          });
    return required(data);
  }, onDone);
}

export function useChangeKey(owner: Owner, onDone: (key: ApiKey) => void) {
  return useKeyMutation(
    async (client, { id, body }: { id: string; body: Schemas["ApiKeyChange"] }) => {
      const { data } =
        owner === null
          ? await client.PATCH("/v1/api_keys/{key_id}", { params: { path: { key_id: id } }, body })
          : await client.PATCH("/admin/v1/tenants/{tenant_id}/api_keys/{key_id}", {
              params: { path: { tenant_id: owner, key_id: id } },
              body,
            });
      return required(data);
    },
    onDone,
  );
}

export function useRotateKey(owner: Owner, onDone: (key: NewApiKey) => void) {
  return useKeyMutation(async (client, { id, overlap_s }: { id: string; overlap_s: number }) => {
    const body = { overlap_s };
    const { data } =
      owner === null
        ? await client.POST("/v1/api_keys/{key_id}/rotate", {
            params: { path: { key_id: id } },
            body,
          })
        : await client.POST("/admin/v1/tenants/{tenant_id}/api_keys/{key_id}/rotate", {
            params: { path: { tenant_id: owner, key_id: id } },
            body,
          });
    return required(data);
  }, onDone);
}

export function useRevokeKey(owner: Owner, onDone: () => void) {
  return useKeyMutation(async (client, id: string) => {
    const { data } =
      owner === null
        ? await client.DELETE("/v1/api_keys/{key_id}", { params: { path: { key_id: id } } })
        : await client.DELETE("/admin/v1/tenants/{tenant_id}/api_keys/{key_id}", {
            params: { path: { tenant_id: owner, key_id: id } },
          });
    return required(data);
  }, onDone);
}
