/** What the operator's tenants page asks the API for. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FetchClient, required, type Schemas, withErrors } from "../../api/client";
import { useApi } from "../../api/context";

export type Tenant = Schemas["Tenant"];

const PAGE = 100;

async function listAll(client: FetchClient): Promise<Tenant[]> {
  const all: Tenant[] = [];
  let after: string | undefined;
  for (;;) {
    const { data } = await client.GET("/admin/v1/tenants", {
      params: { query: { limit: PAGE, after } },
    });
    if (data === undefined) return all;
    all.push(...data.data);
    if (!data.has_more || !data.last_id) return all;
    after = data.last_id;
  }
}

export function useTenants() {
  const { client } = useApi();
  return useQuery({ queryKey: ["tenants"], queryFn: () => listAll(client) });
}

export function usePlans() {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", "/admin/v1/plans"));
}

function useTenantMutation<Input, Output>(
  mutationFn: (input: Input) => Promise<Output>,
  onSuccess?: (output: Output) => void,
) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn,
    onSuccess: async (output) => {
      await queries.invalidateQueries({ queryKey: ["tenants"] });
      onSuccess?.(output);
    },
  });
}

export function useCreateTenant(onDone: (tenant: Tenant) => void) {
  const { client } = useApi();
  return useTenantMutation(
    async (tenant: { name: string; plan: string }) =>
      required(
        (await client.POST("/admin/v1/tenants", { body: { ...tenant, if_name_exists: "allow" } }))
          .data,
      ),
    onDone,
  );
}

export function useSetStatus() {
  const { client } = useApi();
  return useTenantMutation(async ({ id, status }: { id: string; status: "active" | "suspended" }) =>
    required(
      (
        await client.PATCH("/admin/v1/tenants/{tenant_id}", {
          params: { path: { tenant_id: id } },
          body: { status },
        })
      ).data,
    ),
  );
}
