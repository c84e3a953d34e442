/** What the pages of a tenant's settings ask the API for. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../../api/client";
import { useApi } from "../../api/context";
import { useChange } from "../../api/paged";
import type { Settings, SettingsChange } from "./model";

export type Profile = Schemas["BillingProfile"];

const OWN = "/v1/settings";
const THEIRS = "/admin/v1/tenants/{tenant_id}/settings";
const PROFILE = "/v1/billing_profile";

/** One's own; of `tenant`, for the operator. */
export function useSettings(tenant: string | null = null) {
  const { client } = useApi();
  return useQuery({
    queryKey: tenant === null ? [OWN] : [THEIRS, tenant],
    queryFn: async (): Promise<Settings> =>
      required(
        tenant === null
          ? (await client.GET(OWN)).data
          : (await client.GET(THEIRS, { params: { path: { tenant_id: tenant } } })).data,
      ),
  });
}

export function useChangeSettings(onDone: () => void) {
  return useChange<SettingsChange, Settings>(
    [OWN],
    (client, body) => client.PATCH(OWN, { body: body as Schemas["TenantSettingsChange"] }),
    onDone,
  );
}

export function useProfile(isEnabled: boolean) {
  const { client } = useApi();
  return useQuery({
    queryKey: [PROFILE],
    enabled: isEnabled,
    queryFn: async () => required((await client.GET(PROFILE)).data),
  });
}

export function usePutProfile(onDone: () => void) {
  return useChange(
    [PROFILE],
    (client, body: Schemas["ProfileBody"]) => client.PUT(PROFILE, { body }),
    onDone,
  );
}
