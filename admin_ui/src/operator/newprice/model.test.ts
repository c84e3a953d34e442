import { expect, test } from "vitest";
import type { Price } from "../prices/model";
import {
  bodyOf,
  EMPTY,
  earliestIn,
  type Fields,
  faultsIn,
  fieldsFrom,
  fieldTime,
  isRight,
  type Preview,
  previewBodyOf,
  rowsOf,
  verdictOf,
} from "./model";

const FILLED: Fields = {
  ...EMPTY,
  entries: EMPTY.entries.map((each) => ({ ...each, price: each.price || "0.25" })),
};

const PRICE: Price = {
  object: "price_version",
  id: "price_1",
  no: 1,
  status: "in_force",
  model: "base",
  plan: null,
  tenant: "tenant_1",
  adapter: null,
  tenant_name: "Acme",
  adapter_name: null,
  currency: "EUR",
  effective_from: "2026-11-01T00:00:00Z",
  effective_to: null,
  per_million: {
    uncached_prefill: "0.200000",
    cached_prefill: "0.050000",
    output: [
      { class: null, from: 0, price: "0.600000" },
      { class: "flex", from: 0, price: "0.300000" },
    ],
    stored: "0.000000",
  },
  minimum: "20.000000000000",
  included: "0",
};

test("an empty form says what is missing, a filled one is sent as it is", () => {
  expect(isRight(faultsIn(EMPTY))).toBe(false);
  expect(isRight(faultsIn(FILLED))).toBe(true);
  const body = bodyOf(FILLED);
  expect(body).toMatchObject({ currency: "USD", tenant: null, plan: null, minimum: "0" });
  expect(body.per_million.output).toEqual([{ class: null, from: 0, price: "0.25" }]);
  expect(body.effective_from).toBeUndefined();
});

test("a new version begins with what the list says", () => {
  const fields = fieldsFrom(PRICE);
  expect(fields).toMatchObject({ scope: "tenant", of: "tenant_1", model: "base", minimum: "20" });
  const body = bodyOf(fields);
  expect(body).toMatchObject({ tenant: "tenant_1", model: "base", currency: "EUR" });
  expect(body.per_million.output).toEqual([
    { class: null, from: 0, price: "0.6" },
    { class: "flex", from: 0, price: "0.3" },
  ]);
  expect(body.per_million.cold_load).toBeUndefined();
  expect(previewBodyOf({ ...fields, begins: "2027-01-01T00:00" }, "2026-10")).toEqual({
    ...body,
    month: "2026-10",
  });
});

test("faults of entries are at the entry", () => {
  const entry = { key: 90, meter: "output" as const, class_: "flex", from: "100", price: "1" };
  const first = faultsIn({ ...FILLED, entries: [...FILLED.entries, entry] });
  expect(first.entries[90]).toContain("price from unit 0");
  const twice = faultsIn({
    ...FILLED,
    entries: [...FILLED.entries, { ...entry, class_: "", from: "0" }],
  });
  expect(twice.entries[90]).toContain("already");
  const held = { ...entry, meter: "stored" as const, from: "0" };
  expect(faultsIn({ ...FILLED, entries: [...FILLED.entries, held] }).entries[90]).toContain(
    "class",
  );
  expect(faultsIn({ ...FILLED, scope: "plan" }).of).toBeDefined();
  const none = FILLED.entries.filter(({ meter }) => meter !== "output");
  expect(faultsIn({ ...FILLED, entries: none }).meters).toEqual(["output"]);
});

function tenant(
  id: string,
  before: Record<string, string>,
  after: Record<string, string>,
  unpriced = 0,
) {
  const meter = {
    meter: "output" as const,
    class: "default",
    quantity: 1,
    before,
    after,
    unpriced,
  };
  return {
    tenant: id,
    tenant_name: id.toUpperCase(),
    before,
    after,
    due_before: before,
    due_after: after,
    meters: [meter],
  };
}

test("a preview by tenant: exact differences, a currency beside the other", () => {
  const data = [
    tenant("a", { USD: "1.000000000000" }, { USD: "1.000000000001" }),
    tenant("b", { USD: "2" }, { USD: "1" }),
    tenant("c", { USD: "3" }, { EUR: "3" }),
    tenant("d", { USD: "4" }, { USD: "4" }, 7),
  ];
  const preview: Preview = {
    object: "price_preview",
    month: "2026-10",
    before: {},
    after: {},
    due_before: {},
    due_after: {},
    has_more: false,
    data,
  };
  const rows = rowsOf(preview);
  expect(rows.map(({ tenant }) => tenant)).toEqual(["c", "b", "a", "d"]);
  expect(rows[0]?.change).toEqual({ EUR: "3.000000000000", USD: "-3.000000000000" });
  expect(rows[2]?.change).toEqual({ USD: "0.000000000001" });
  expect(verdictOf(rows)).toEqual({ more: 2, less: 2, same: 1, unpriced: 1 });
});

test("a refusal names the earliest moment, which the form takes rounded up", () => {
  const message =
    "Usage from 2026-11-01T00:00:00+00:00 on has been rated already, and what has been rated does " +
    "not change. The earliest date allowed is 2026-11-23T05:17:21.118001+00:00.";
  expect(earliestIn(message)).toBe("2026-11-23T05:17:21.118001+00:00");
  expect(earliestIn("Something else.")).toBeNull();
  expect(Date.parse(fieldTime("2026-11-23T05:17:21.118001+00:00"))).toBe(
    Date.parse("2026-11-23T05:17:22Z"),
  );
});
