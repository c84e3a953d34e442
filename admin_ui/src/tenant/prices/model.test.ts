import { expect, test } from "vitest";
import { announced, holding, nameOf, reason, type TenantPrice } from "./model";

function price(id: string, scope: Partial<TenantPrice> = {}): TenantPrice {
  return {
    id,
    object: "price_version",
    model: null,
    plan: null,
    tenant: null,
    adapter: null,
    adapter_name: null,
    currency: "USD",
    effective_from: "2026-11-01T00:00:00Z",
    effective_to: null,
    per_million: { output: "0.40" },
    minimum: "0",
    included: "0",
    status: "in_force",
    ...scope,
  };
}

const GENERAL = price("general");
const PLAN = price("plan", { plan: "standard" });
const OWN = price("own", { tenant: "tenant_a" });
const ADAPTER = price("adapter", {
  tenant: "tenant_a",
  adapter: "adapter_1",
  adapter_name: "support",
});
const MODEL = price("model", { plan: "standard", model: "tiny" });

const found = (...prices: TenantPrice[]) =>
  Object.fromEntries(
    holding(prices).map((each) => [
      each.price.id,
      each.overriddenBy?.id ?? each.except.map(({ id }) => id),
    ]),
  );

test("a list is overridden by a more specific one for the same usage", () => {
  expect(found(GENERAL)).toEqual({ general: [] });
  expect(found(PLAN, GENERAL)).toEqual({ plan: [], general: "plan" });
  expect(found(OWN, PLAN, GENERAL)).toEqual({ own: [], plan: "own", general: "own" });
});

test("and only in part by one for less usage", () => {
  expect(found(ADAPTER, GENERAL)).toEqual({ adapter: [], general: ["adapter"] });
  expect(found(MODEL, GENERAL)).toEqual({ model: [], general: ["model"] });
  // The tenant's own list comes before the plan's list of one model.
  expect(found(ADAPTER, OWN, MODEL)).toEqual({ adapter: [], own: ["adapter"], model: "own" });
});

test("it is said in words, with names", () => {
  const [adapter, general] = holding([ADAPTER, GENERAL]);
  expect(adapter && reason(adapter)).toBe("Applies to requests of your adapter support.");
  expect(general && reason(general)).toBe(
    "Applies to all usage, except what the more specific list “Your adapter support” covers.",
  );
  const [, below] = holding([OWN, GENERAL]);
  expect(below && reason(below)).toMatch(/^Not in use now: the list “Your account”/);
  expect(nameOf(MODEL)).toBe("Plan standard, model tiny");
});

test("what is announced stands apart, the next one first", () => {
  const later = price("later", { status: "announced", effective_from: "2027-03-01T00:00:00Z" });
  const next = price("next", { status: "announced", effective_from: "2027-01-01T00:00:00Z" });
  expect(announced([later, GENERAL, next]).map(({ id }) => id)).toEqual(["next", "later"]);
  expect(found(later, GENERAL)).toEqual({ general: [] });
});
