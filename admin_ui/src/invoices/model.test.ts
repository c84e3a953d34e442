import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/client";
import { dueWords, equation, leadsDown, monthTitle, nameOf, narrowed, nextGroup } from "./model";

const ROW: Schemas["LineDetail"] = {
  day: null,
  adapter: null,
  adapter_version: null,
  adapter_digest: null,
  api_key_id: null,
  event_id: null,
  request_id: null,
  x_request_id: null,
  time: null,
  quantity: 3,
  amount: "0.000003",
};

const LINE: Schemas["InvoiceLine"] = {
  no: 2,
  kind: "usage",
  description: "Output tokens",
  month: "2026-11",
  meter: "output",
  class: "default",
  price_version: 4,
  prices: [{ from: 0, per_million: "0.4" }],
  quantity: 105_000_000,
  unit: "tokens",
  exact_amount: "42",
  amount: "42.00",
  of_line: null,
};

describe("a line's parts", () => {
  it("lead from day to adapter to key to requests", () => {
    let part = {};
    const seen = [nextGroup(part)];
    part = narrowed(part, "day", { ...ROW, day: "2026-11-03" });
    seen.push(nextGroup(part));
    part = narrowed(part, "adapter", { ...ROW, adapter: "tone", adapter_version: 2 });
    seen.push(nextGroup(part));
    part = narrowed(part, "api_key", { ...ROW, api_key_id: "key_1" });
    seen.push(nextGroup(part));
    expect(seen).toEqual(["day", "adapter", "api_key", "request"]);
    expect(part).toEqual({ day: "2026-11-03", adapter: "tone@2", api_key: "key_1" });
  });

  it("knows the base model as an adapter without a name", () => {
    expect(narrowed({}, "adapter", ROW)).toEqual({ adapter: "" });
    expect(nextGroup({ day: "2026-11-03", adapter: "" })).toBe("api_key");
    expect(nameOf("adapter", ROW)).toBe("base model");
  });
});

describe("lines", () => {
  it("say quantity times price", () => {
    expect(equation(LINE, "USD")).toBe("105,000,000 tokens × $0.40 / 1,000,000");
    const prices = [
      { from: 0, per_million: "4" },
      { from: 10, per_million: "3" },
    ];
    expect(equation({ ...LINE, prices }, "EUR")).toBe(
      "105,000,000 tokens × €4.00, €3.00 from 10 / 1,000,000",
    );
    expect(equation({ ...LINE, quantity: null }, "USD")).toBeNull();
  });

  it("lead down only where there was usage", () => {
    expect(leadsDown(LINE)).toBe(true);
    expect(leadsDown({ ...LINE, kind: "tax", meter: null })).toBe(false);
  });
});

describe("months", () => {
  it("are written out", () => {
    expect(monthTitle("2026-11")).toBe("November 2026");
  });
});

it("a draft is due once it is finalised, an invoice on its UTC day", () => {
  expect(dueWords({ status: "draft", due_at: null })).toBe("due once finalised");
  expect(dueWords({ status: "final", due_at: "2026-12-01T00:00:00Z" })).toBe(
    "due 1 Dec 2026 (UTC)",
  );
  expect(dueWords({ status: "void", due_at: null })).toBeUndefined();
});
