/** What the page of credit and ledger asks the API for. */

import type { Schemas } from "../../api/client";
import { withErrors } from "../../api/client";
import { useApi } from "../../api/context";
import { usePaged } from "../../api/paged";

export type Grant = Schemas["OwnGrant"];
export type Transaction = Schemas["LedgerTransaction"];

const PAGE = 50;

export function useBalances() {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", "/v1/balances"));
}

export function useGrants() {
  return usePaged<Grant, Schemas["OwnGrantPage"]>("/v1/credits", null, (client, after) =>
    client.GET("/v1/credits", { params: { query: { after, limit: PAGE } } }),
  );
}

export interface LedgerFilters {
  kind?: string;
  start?: string;
  end?: string;
}

export function useLedger(filters: LedgerFilters) {
  return usePaged<Transaction, Schemas["LedgerPage"]>("/v1/ledger", filters, (client, after) =>
    client.GET("/v1/ledger", { params: { query: { ...filters, after, limit: PAGE } } }),
  );
}
