/** What pages of billing ask the API for. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { required, type Schemas, withErrors } from "../../api/client";
import { useApi } from "../../api/context";
import { untilDone } from "../../api/jobs";
import { useChange, usePaged } from "../../api/paged";
import type { Run, RunBody, TenantCosts } from "./model";

const COSTS = "/admin/v1/costs/tenants";
const INVOICES = "/admin/v1/invoices";
const RUNS = "/admin/v1/invoices/runs";
/** Of the invoices of a run. */
const SHOWN_MAX = 100;
const ACCOUNTS = "/admin/v1/ledger/accounts";
const CREDITS = "/admin/v1/credits";
const PAGE = 50;
/** What moves when an invoice does. */
const BILLED = [INVOICES, "/admin/v1/ledger", "/ledger", "/balances", CREDITS] as const;

export const COST_SORTS = ["name", "-name", "spend", "-spend"] as const;
export type CostSort = (typeof COST_SORTS)[number];
export interface CostFilters {
  month: string;
  q?: string;
  sort: CostSort;
  currency: string;
}

export function useCosts(filters: CostFilters) {
  return usePaged<TenantCosts, Schemas["TenantCostsPage"]>(COSTS, filters, (client, after) =>
    client.GET(COSTS, { params: { query: { ...filters, after, limit: PAGE } } }),
  );
}

/** One tenant's month. */
export function useTenantCosts(tenant: string) {
  const { client } = useApi();
  return useQuery({
    queryKey: [COSTS, "one", tenant],
    queryFn: async () =>
      required((await client.GET(COSTS, { params: { query: { tenant } } })).data),
  });
}

/** All tenants together, this month. */
export function useForecast() {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", "/admin/v1/forecast"));
}

/** All tenants together, of a month that is over or runs. */
export function useMonth(start: string, end: string, isEnabled: boolean) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/admin/v1/costs",
      { params: { query: { start: `${start}T00:00:00Z`, end: `${end}T00:00:00Z`, bucket: "1d" } } },
      { enabled: isEnabled },
    ),
  );
}

export type InvoiceSummary = Schemas["InvoiceSummary"];
export const INVOICE_SORTS = [
  "created",
  "-created",
  "due",
  "-due",
  "number",
  "-number",
  "total",
  "-total",
] as const;
export interface InvoiceFilters {
  q?: string;
  tenant?: string;
  period?: string;
  status?: "draft" | "final" | "void";
  kind?: "invoice" | "credit_note";
  sort?: (typeof INVOICE_SORTS)[number];
}

export function useInvoiceList(filters: InvoiceFilters) {
  return usePaged<InvoiceSummary, Schemas["InvoicePage"]>(INVOICES, filters, (client, after) =>
    client.GET(INVOICES, { params: { query: { ...filters, after, limit: PAGE } } }),
  );
}

/** A run: of one tenant at once, of all by a worker, whose progress is told. */
export function useRun(onProgress: (part: number | null) => void) {
  const { client } = useApi();
  const queries = useQueryClient();
  return useMutation({
    mutationFn: async (body: RunBody): Promise<Run> => {
      if (body.tenant) {
        const of = { ...body, after: "" };
        const answer = await client.POST("/admin/v1/invoices/run", { body: of });
        return required(answer.data);
      }
      const asked = await client.POST(RUNS, { body });
      const job = await untilDone(
        required(asked.data),
        async ({ id }) => {
          const found = await client.GET(`${RUNS}/{run_id}`, { params: { path: { run_id: id } } });
          return required(found.data);
        },
        onProgress,
      );
      const { period, status } = job;
      const query = { period, status, kind: "invoice" as const, limit: SHOWN_MAX };
      const found = required((await client.GET(INVOICES, { params: { query } })).data);
      return { ...job, invoices: found.data };
    },
    onSettled: () => {
      onProgress(null);
      return queries.invalidateQueries({
        predicate: ({ queryKey }) =>
          queryKey.some(
            (part) => typeof part === "string" && BILLED.some((path) => part.includes(path)),
          ),
      });
    },
  });
}

export function useVoid(onDone: () => void) {
  return useChange(
    BILLED,
    (client, { id, reason }: { id: string; reason: string }) =>
      client.POST("/admin/v1/invoices/{invoice_id}/void", {
        params: { path: { invoice_id: id } },
        body: { reason },
      }),
    onDone,
  );
}

export function usePay(onDone: () => void) {
  return useChange(
    BILLED,
    (client, { id, ...body }: { id: string } & Schemas["PaymentBody"]) =>
      client.POST("/admin/v1/invoices/{invoice_id}/payments", {
        params: { path: { invoice_id: id } },
        body,
      }),
    onDone,
  );
}

export function useCreditNote(onDone: (note: Schemas["Invoice"]) => void) {
  return useChange(
    BILLED,
    (client, { id, ...body }: { id: string } & Schemas["CreditNoteBody"]) =>
      client.POST("/admin/v1/invoices/{invoice_id}/credit_notes", {
        params: { path: { invoice_id: id } },
        body,
      }),
    onDone,
  );
}

export type AccountName =
  | "unbilled"
  | "receivable"
  | "cash"
  | "tax"
  | "rounding"
  | "promotion"
  | "credit:granted"
  | "credit:bought"
  | "credit:lapsed";
export type TenantAccount = Schemas["TenantAccount"];

export function useAccounts(account: AccountName, q?: string) {
  return usePaged<TenantAccount, Schemas["TenantAccounts"]>(
    ACCOUNTS,
    { account, q },
    (client, after) =>
      client.GET(ACCOUNTS, { params: { query: { account, q, after, limit: PAGE } } }),
  );
}

export type TenantCredit = Schemas["TenantCredit"];

export function useCredits(q?: string) {
  return usePaged<TenantCredit, Schemas["TenantCreditPage"]>(CREDITS, { q }, (client, after) =>
    client.GET(CREDITS, { params: { query: { q, after, limit: PAGE } } }),
  );
}

export function useGrant(onDone: () => void) {
  return useChange(
    [CREDITS, "/admin/v1/tenants", "/credits", "/ledger", "/balances"],
    (client, { tenant, ...body }: { tenant: string } & Schemas["CreditCreate"]) =>
      client.POST("/admin/v1/tenants/{tenant_id}/credits", {
        params: { path: { tenant_id: tenant } },
        body,
      }),
    onDone,
  );
}

export function useWaiting() {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", "/admin/v1/reconciliation"));
}
