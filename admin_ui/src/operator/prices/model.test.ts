import { expect, test } from "vitest";
import { entriesOf, missingMeters, type Price, scopeWords, summary, timeline } from "./model";

const PRICE: Price = {
  object: "price_version",
  id: "price_1",
  no: 1,
  status: "in_force",
  model: null,
  plan: null,
  tenant: null,
  adapter: null,
  tenant_name: null,
  adapter_name: null,
  currency: "USD",
  effective_from: "2026-11-01T00:00:00Z",
  effective_to: null,
  per_million: {
    uncached_prefill: "0.200000",
    cached_prefill: "0.050000",
    output: [
      { class: null, from: 0, price: "0.600000" },
      { class: null, from: 1_000_000_000, price: "0.450000" },
      { class: "priority", from: 0, price: "1.200000" },
    ],
  },
  minimum: "0",
  included: "0",
};
const NOW = Date.parse("2026-11-23T00:00:00Z");

test("for whom a list holds", () => {
  expect(scopeWords(PRICE)).toBe("All tenants");
  expect(scopeWords({ ...PRICE, tenant: "tenant_1", tenant_name: "Acme" })).toBe("Tenant Acme");
  const of = {
    ...PRICE,
    tenant: "tenant_1",
    tenant_name: "Acme",
    adapter: "a",
    adapter_name: "tone",
  };
  expect(scopeWords(of)).toBe("Adapter tone of Acme");
  expect(scopeWords({ ...PRICE, plan: "gold", model: "m" })).toBe("Plan gold, model m");
});

test("prices by meter, class and tier, and what has none", () => {
  expect(entriesOf(PRICE.per_million)).toHaveLength(5);
  expect(entriesOf(PRICE.per_million)[4]).toEqual({
    meter: "output",
    class_: "priority",
    from: 0,
    price: "1.200000",
  });
  expect(missingMeters(PRICE)).toEqual([
    "cold_load",
    "device_residency",
    "host_residency",
    "stored",
  ]);
  expect(summary(PRICE)).toBe("$0.20 / $0.05 / $0.60…");
});

test("a lane for each scope, a bar for each version, all within the line", () => {
  const ended = {
    ...PRICE,
    id: "price_0",
    effective_from: "2020-01-01T00:00:00Z",
    effective_to: PRICE.effective_from,
  };
  const ahead = { ...PRICE, id: "price_2", plan: "gold", effective_from: "2027-01-01T00:00:00Z" };
  const found = timeline([ahead, PRICE, ended], NOW);
  expect(found.lanes.map(({ label }) => label)).toEqual(["All tenants", "Plan gold"]);
  const [first, second] = found.lanes[0]?.bars ?? [];
  expect(first?.price.id).toBe("price_0");
  expect(first?.left).toBe(0);
  expect((first?.left ?? 0) + (first?.width ?? 0)).toBeCloseTo(second?.left ?? -1, 9);
  expect((second?.left ?? 0) + (second?.width ?? 0)).toBeCloseTo(1, 9);
  expect(found.now).toBeGreaterThan(second?.left ?? 1);
  expect(found.lanes[1]?.bars[0]?.left).toBeGreaterThan(found.now);
  expect(found.ticks.length).toBeLessThanOrEqual(8);
});

test("without lists there is a line all the same", () => {
  expect(timeline([], NOW).lanes).toEqual([]);
});
