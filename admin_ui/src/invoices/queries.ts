/** What pages ask the API about invoices, of a tenant's own or, for the operator, of any. */

import { keepPreviousData, useInfiniteQuery, useMutation, useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../api/client";
import { useApi } from "../api/context";
import { fileName, save } from "../components/download";
import type { LineGroup, LinePart } from "./model";

export type Side = "tenant" | "operator";
export type Invoice = Schemas["Invoice"];
export type InvoiceSummary = Schemas["InvoiceSummary"];
export type InvoiceLine = Schemas["InvoiceLine"];
export type LineDetail = Schemas["LineDetail"];

const PAGE = 50;
const REQUESTS = 100;

export interface InvoiceFilters {
  tenant?: string;
  period?: string;
  status?: InvoiceSummary["status"];
  kind?: InvoiceSummary["kind"];
}

export function useInvoices(side: Side, filters: InvoiceFilters = {}) {
  const { client } = useApi();
  return useInfiniteQuery({
    queryKey: [side === "tenant" ? "/v1/invoices" : "/admin/v1/invoices", filters],
    initialPageParam: undefined as string | undefined,
    queryFn: async ({ pageParam: after }) => {
      const { period, kind } = filters;
      const { data } =
        side === "tenant"
          ? await client.GET("/v1/invoices", {
              params: { query: { period, kind, after, limit: PAGE } },
            })
          : await client.GET("/admin/v1/invoices", {
              params: { query: { ...filters, after, limit: PAGE } },
            });
      return required(data);
    },
    getNextPageParam: (page) => (page.has_more ? (page.last_id ?? undefined) : undefined),
    placeholderData: keepPreviousData,
  });
}

export function useInvoice(side: Side, invoice_id: string) {
  const { client } = useApi();
  const params = { path: { invoice_id } };
  return useQuery({
    queryKey: [side === "tenant" ? "/v1/invoices" : "/admin/v1/invoices", invoice_id],
    queryFn: async () =>
      required(
        side === "tenant"
          ? (await client.GET("/v1/invoices/{invoice_id}", { params })).data
          : (await client.GET("/admin/v1/invoices/{invoice_id}", { params })).data,
      ),
  });
}

/** A line, or a part of it, taken apart; page by page where that is by request. */
export function useLine(side: Side, invoice_id: string, no: number, by: LineGroup, part: LinePart) {
  const { client } = useApi();
  return useInfiniteQuery({
    queryKey: [side === "tenant" ? "/v1/invoices" : "/admin/v1/invoices", invoice_id, no, by, part],
    initialPageParam: undefined as string | undefined,
    queryFn: async ({ pageParam: page }) => {
      const query = { group_by: by, page, limit: REQUESTS, ...part };
      const params = { path: { invoice_id, no }, query };
      return required(
        side === "tenant"
          ? (await client.GET("/v1/invoices/{invoice_id}/lines/{no}", { params })).data
          : (await client.GET("/admin/v1/invoices/{invoice_id}/lines/{no}", { params })).data,
      );
    },
    getNextPageParam: (page) => page.next_page ?? undefined,
  });
}

export type Format = "pdf" | "csv";

/** Fetched with the session's headers, which a plain link would not send, and saved. */
export function useInvoiceFile(side: Side, invoice_id: string) {
  const { client } = useApi();
  return useMutation({
    mutationFn: async (format: Format) => {
      const asked = { params: { path: { invoice_id } }, parseAs: "blob" as const };
      const answer =
        side === "tenant"
          ? await client.GET(`/v1/invoices/{invoice_id}.${format}`, asked)
          : await client.GET(`/admin/v1/invoices/{invoice_id}.${format}`, asked);
      const content: unknown = answer.data;
      if (!(content instanceof Blob)) throw new Error("The server sent an empty file. Try again.");
      save(content, fileName(answer.response, `${invoice_id}.${format}`));
    },
  });
}
