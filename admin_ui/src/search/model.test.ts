import { expect, test } from "vitest";
import type { Schemas } from "../api/client";
import { fits, invoiceHits } from "./model";

const INVOICE = {
  id: "invoice_1",
  number: "2026-0001",
  period: "2026-10",
  tenant_name: "Acme",
  total: "12.50",
  currency: "EUR",
  status: "final",
} as Schemas["InvoiceSummary"];

test("invoices are found by number, period and id", () => {
  const draft = { ...INVOICE, id: "invoice_2", number: null, period: "2026-11" };
  const find = (asked: string | null) =>
    invoiceHits([INVOICE, draft], "/invoices", asked).map(({ label }) => label);
  expect(find("0001")).toEqual(["2026-0001"]);
  expect(find("2026-11")).toEqual(["Draft for 2026-11"]);
  expect(find("INVOICE_")).toHaveLength(2);
  expect(find(null)).toHaveLength(2);
  expect(find("2025")).toEqual([]);
  expect(invoiceHits([INVOICE], "/operator/invoices", null)[0]?.note).toBe(
    "Acme, 2026-10, €12.50, final",
  );
});

test("a page is found by any part of its label", () => {
  expect(fits("Usage and cost", " COST ")).toBe(true);
  expect(fits("Usage and cost", "keys")).toBe(false);
});
