import { describe, expect, it } from "vitest";
import type { Schemas } from "../../api/client";
import { adapterRows, bounds, dayRows, monthOf, shift, title } from "./month";

const FEBRUARY = { year: 2028, month: 1 };

function used(output: number, adapter: string | null = null): Schemas["UsageResult"] {
  return {
    requests: 1,
    sequences: 1,
    prompt_tokens: 10,
    cached_tokens: 4,
    uncached_tokens: 6,
    output_tokens: output,
    adapter,
    adapter_version: null,
    api_key_id: null,
    model: null,
    tenant_id: null,
  };
}

describe("months", () => {
  it("end where the next begins, over the year's end too", () => {
    expect(bounds({ year: 2027, month: 11 })).toEqual({
      start: "2027-12-01T00:00:00Z",
      end: "2028-01-01T00:00:00Z",
    });
    expect(shift({ year: 2028, month: 0 }, -1)).toEqual({ year: 2027, month: 11 });
    expect(title(FEBRUARY)).toBe("February 2028");
  });

  it("are UTC's, not the browser's", () => {
    expect(monthOf(new Date("2028-03-01T00:30:00+02:00"))).toEqual(FEBRUARY);
  });
});

describe("dayRows", () => {
  it("has every day and adds up the results of one", () => {
    const bucket: Schemas["UsageBucket"] = {
      object: "bucket",
      start: "2028-02-29T00:00:00Z",
      end: "2028-03-01T00:00:00Z",
      results: [used(3), used(4)],
    };
    const rows = dayRows(FEBRUARY, [bucket]);
    expect(rows).toHaveLength(29);
    expect(rows[28]).toEqual({ day: "29", Uncached: 12, Cached: 8, Output: 7 });
    expect(rows[0]).toEqual({ day: "1", Uncached: 0, Cached: 0, Output: 0 });
  });
});

describe("adapterRows", () => {
  it("joins usage and cost by adapter, the base model apart", () => {
    const cost: Schemas["CostResult"] = {
      amount: "0.000000000001",
      currency: "USD",
      meters: [],
      unrated_events: 0,
      adapter: "tone",
      adapter_version: null,
      api_key_id: null,
      model: null,
      tenant_id: null,
    };
    const rows = adapterRows([used(1), used(9, "tone")], [cost]);
    expect(rows.map((row) => [row.adapter, row.cost?.amount ?? null])).toEqual([
      ["tone", "0.000000000001"],
      [null, null],
    ]);
  });
});
