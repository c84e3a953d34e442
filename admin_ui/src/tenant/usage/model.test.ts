import { describe, expect, it } from "vitest";
import { type Answer, csvRows, months, type Result, viewOf, windowOf } from "./model";

const NOW_S = Date.UTC(2026, 10, 23, 6, 30) / 1000;
const iso = (seconds: number) => new Date(seconds * 1000).toISOString();

describe("windows", () => {
  it("are whole hours, days and months of UTC", () => {
    const of = (period: string | null) => {
      const { startS, endS, bucket } = windowOf(period, NOW_S);
      return [iso(startS), iso(endS), bucket];
    };
    expect(of("24h")).toEqual(["2026-11-22T07:00:00.000Z", "2026-11-23T07:00:00.000Z", "1h"]);
    expect(of("7d")).toEqual(["2026-11-17T00:00:00.000Z", "2026-11-24T00:00:00.000Z", "1d"]);
    expect(of("2026-12")).toEqual(["2026-12-01T00:00:00.000Z", "2027-01-01T00:00:00.000Z", "1d"]);
    expect(of(null)).toEqual(["2026-11-01T00:00:00.000Z", "2026-12-01T00:00:00.000Z", "1d"]);
    expect(of("odd")).toEqual(of(null));
  });

  it("go back over the year's end", () => {
    expect(months(Date.UTC(2027, 0, 31) / 1000, 3).map(({ value }) => value)).toEqual([
      "2027-01",
      "2026-12",
      "2026-11",
    ]);
  });
});

function result(changes: Partial<Result>): Result {
  return {
    requests: 1,
    sequences: 1,
    prompt_tokens: 10,
    cached_tokens: 4,
    uncached_tokens: 6,
    output_tokens: 5,
    costs: { amounts: [{ currency: "USD", amount: "0.100000000000" }], unrated_events: 0 },
    others: null,
    tenant_id: null,
    adapter: null,
    adapter_version: null,
    api_key_id: null,
    model: null,
    tier: null,
    kind: null,
    ...changes,
  };
}

const bucket = (day: number, ...results: Result[]): Answer["data"][number] => ({
  object: "bucket",
  start: `2026-11-0${day}T00:00:00Z`,
  end: `2026-11-0${day + 1}T00:00:00Z`,
  results,
});

const EUROS = { amounts: [{ currency: "EUR", amount: "0.000000000001" }], unrated_events: 2 };
const BUCKETS = [
  bucket(1, result({ adapter: "tone" }), result({ adapter: null, costs: EUROS })),
  bucket(
    2,
    result({
      adapter: "tone",
      costs: { amounts: [{ currency: "USD", amount: "0.2" }], unrated_events: 0 },
    }),
    result({ others: 7, requests: 9, costs: EUROS }),
  ),
];

const DOLLARS = { currency: "USD", amount: "0.300000000000" };
const ANSWER = {
  data: BUCKETS,
  groups: [
    result({ adapter: "tone", requests: 2, costs: { amounts: [DOLLARS], unrated_events: 0 } }),
    result({ adapter: null, costs: EUROS }),
    result({ others: 7, requests: 9, costs: EUROS }),
  ],
  total: result({
    requests: 12,
    costs: {
      amounts: [{ currency: "EUR", amount: "0.000000000002" }, DOLLARS],
      unrated_events: 4,
    },
  }),
};

describe("an answer", () => {
  const view = viewOf(ANSWER, "adapter", "cost");

  it("has the server's rows in its order, and its total", () => {
    expect(view.rows.map(({ label, sums }) => [label, sums])).toEqual([
      ["tone", ANSWER.groups[0]],
      ["base model", ANSWER.groups[1]],
      ["7 others", ANSWER.groups[2]],
    ]);
    expect(view.total).toBe(ANSWER.total);
  });

  it("leads to the requests of a group, but of no others", () => {
    expect(view.rows.map(({ filter }) => filter)).toEqual([
      { adapter: "tone" },
      { adapter: "" },
      null,
    ]);
  });

  it("is one chart for each currency, with a value for each bucket", () => {
    expect(view.charts.map(({ key, series }) => [key, series.map(({ name }) => name)])).toEqual([
      ["EUR", ["base model", "7 others"]],
      ["USD", ["tone"]],
    ]);
    expect(view.charts[1]?.series[0]?.values).toEqual([0.1, 0.2]);
    expect(view.times).toEqual([Date.UTC(2026, 10, 1) / 1000, Date.UTC(2026, 10, 2) / 1000]);
  });

  it("shows tokens by their class where nothing else divides them", () => {
    const [groups, total] = [[result({})], result({})];
    const data = [bucket(1, ...groups)];
    const [chart] = viewOf({ data, groups, total }, "none", "tokens").charts;
    expect(chart?.series.map(({ name, values }) => [name, values[0]])).toEqual([
      ["Prompt, uncached", 6],
      ["Prompt, cached", 4],
      ["Output", 5],
    ]);
  });

  it("is a file whose amounts are the server's, and whose counts stand once", () => {
    const both = {
      amounts: [...EUROS.amounts, { currency: "USD", amount: "1.5" }],
      unrated_events: 0,
    };
    const [, first, second] = csvRows([bucket(1, result({ costs: both }))], "adapter", new Map());
    expect(first?.slice(2)).toEqual(["base model", 1, 1, 6, 4, 5, "EUR", "0.000000000001", 0]);
    expect(second?.slice(2)).toEqual([
      "base model",
      null,
      null,
      null,
      null,
      null,
      "USD",
      "1.5",
      null,
    ]);
  });
});
