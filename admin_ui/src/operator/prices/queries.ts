/** What pages about prices ask the API for. */

import type { Schemas } from "../../api/client";
import { useChange, usePaged } from "../../api/paged";
import type { Meter, Price } from "./model";

export const STATUSES = ["in_force", "announced", "ended"] as const;
export type PriceStatus = (typeof STATUSES)[number];
export interface PriceFilters {
  q?: string;
  plan?: string;
  tenant?: string;
  status?: PriceStatus;
}

const LIST = "/admin/v1/prices";
const PAGE = 100;
/** Usage that waited for a price is rated with it. */
const TOUCHED = [LIST, "/admin/v1/costs", "/admin/v1/reconciliation", "/admin/v1/tenants"] as const;

export function usePrices(filters: PriceFilters, isEnabled = true) {
  return usePaged<Price, Schemas["PriceVersionList"]>(
    LIST,
    filters,
    (client, after) =>
      client.GET(LIST, {
        params: { query: { ...filters, sort: "-effective_from", after, limit: PAGE } },
      }),
    isEnabled,
  );
}

/** One list, which need not be on the page that is shown. */
export function usePrice(id: string | null) {
  const found = usePrices({ q: id ?? "" }, id !== null);
  return { ...found, price: found.rows.find((each) => each.id === id) ?? null };
}

/** The list that holds for everybody now, the newest where there are several; null: there is none. */
export function useGeneralPrice(isEnabled: boolean) {
  const found = usePrices({ status: "in_force" }, isEnabled);
  const general = found.rows.find(
    ({ plan, tenant, adapter, model }) => !plan && !tenant && !adapter && !model,
  );
  return { ...found, price: general ?? null };
}

export function useAddPrice(onDone: (price: Schemas["PriceVersion"]) => void) {
  return useChange(
    TOUCHED,
    (client, body: Schemas["PriceVersionCreate"]) => client.POST(LIST, { body }),
    onDone,
  );
}

export function useWithdrawPrice(onDone: () => void) {
  return useChange(
    TOUCHED,
    (client, version_id: string) =>
      client.DELETE("/admin/v1/prices/{version_id}", { params: { path: { version_id } } }),
    onDone,
  );
}

export function useAddMissing(onDone: () => void) {
  return useChange(
    TOUCHED,
    (client, { id, prices }: { id: string; prices: Partial<Record<Meter, string>> }) =>
      client.PATCH("/admin/v1/prices/{version_id}", {
        params: { path: { version_id: id } },
        body: { per_million: prices },
      }),
    onDone,
  );
}
