import { describe, expect, it } from "vitest";
import {
  type Answer,
  type AuditEntry,
  changes,
  daysOf,
  errorsOf,
  eventWords,
  type Forecast,
  kept,
  partOf,
  stepOf,
  tokensByClass,
  totalOf,
} from "./model";

type One = Answer["series"][number];

function series(changes_: Partial<One>): One {
  return {
    metric: "output_tokens",
    unit: "tokens",
    tenant_id: null,
    tenant_name: null,
    service_class: null,
    adapter: null,
    version: null,
    kind: null,
    target_ms: null,
    values: [1, null, 3],
    met: null,
    promised: null,
    counts: null,
    ...changes_,
  };
}

const answer = (...all: One[]): Answer => ({
  object: "timeseries",
  start: 0,
  end: 180,
  step_s: 60,
  times: [0, 60, 120],
  known_until: null,
  total: all.length,
  series: all,
  sums: [],
});

it("calls without an error are no calls unknown", () => {
  const sums = (...all: [string, number][]) => ({
    ...answer(),
    sums: all.map(([metric, value]) => ({ metric, unit: "count" as const, value })),
  });
  expect(errorsOf(sums())).toBeNull();
  expect(errorsOf(sums(["answers", 3]))).toBe(0);
  expect(errorsOf(sums(["answers", 3], ["errors", 2]))).toBe(2);
});

describe("how one was served", () => {
  it("adds up tokens by class, and does not know what nobody counted", () => {
    const found = tokensByClass(
      answer(
        series({ service_class: "flex" }),
        series({ service_class: "flex", metric: "prompt_tokens", values: [10, null, 20] }),
        series({ service_class: "default", values: [5, 6, null] }),
      ),
    );
    expect(found.map(({ name, values }) => [name, values])).toEqual([
      ["default", [5, 6, null]],
      ["flex", [11, null, 23]],
    ]);
  });

  it("knows what was met of what was promised", () => {
    const part = { metric: "ttft_attainment", met: [3, 0, 4], promised: [4, 0, 4], target_ms: 900 };
    const sum = {
      metric: "ttft_attainment",
      unit: "part",
      value: 0.875,
      met: 7,
      promised: 8,
    } as const;
    expect(kept({ ...answer(series(part)), sums: [sum] }, "ttft_attainment")).toEqual({
      met: 7,
      promised: 8,
      targetMs: 900,
    });
    expect(kept(answer(), "tpot_attainment")).toEqual({ met: 0, promised: 0, targetMs: null });
  });

  it("tells nothing known from none", () => {
    const of = (value: number | null) => ({
      ...answer(series({})),
      sums: [{ metric: "output_tokens", unit: "tokens" as const, value }],
    });
    expect(totalOf(of(0), "output_tokens")).toBe(0);
    expect(totalOf(of(null), "output_tokens")).toBeNull();
    expect(totalOf(answer(), "output_tokens")).toBeNull();
  });

  it("is drawn in steps that fit", () => {
    expect([3_600, 21_600, 86_400, 604_800, 2_592_000].map(stepOf)).toEqual([
      ...["1m", "5m", "15m", "1h", "6h"],
    ]);
  });
});

describe("what changed lately", () => {
  const event = { id: "evt_1", object: "event" as const };
  const entry: AuditEntry = {
    id: "aud_1",
    object: "audit_log",
    tenant_id: "tenant_1",
    chain: "tenant_1",
    seq: 1,
    at: "2026-11-20T11:00:00Z",
    actor: "person:1",
    actor_name: "Ada",
    action: "api_key.revoke",
    target: "key_1",
    before: null,
    after: null,
    address: null,
    details: {},
    request_id: null,
    prev_hash: "",
    hash: "",
  };

  it("is newest first, in words, with where to look", () => {
    const found = changes(
      [
        {
          ...event,
          type: "adapter.active",
          created_at: "2026-11-20T10:00:00Z",
          data: { adapter: "tone", version: 2 },
        },
        { ...event, id: "evt_2", type: "new.thing", created_at: "2026-11-20T12:00:00Z", data: {} },
      ],
      [entry, { ...entry, id: "aud_2", action: "adapter_version.reject" }],
      5,
    );
    expect(found.map(({ what, by, to }) => [what, by, to])).toEqual([
      ["New thing", null, null],
      ["API key revoked", "Ada", "/keys"],
      ["tone@2 is ready", null, "/adapters/tone"],
    ]);
  });
});

describe("a budget's event", () => {
  const data = {
    budget: "key_month",
    api_key_id: "key_1",
    currency: "EUR",
    cap: "25.000000000000",
  };
  const event = {
    id: "evt_1",
    object: "event",
    type: "budget.hard",
    created_at: "2026-11-20T10:00:00Z",
    data,
  } as const;

  it("names the key and the amount, and leads to the limits", () => {
    const keys = new Map([["key_1", "ci"]]);
    expect(changes([event], [], 1, keys)).toMatchObject([
      { what: "The monthly budget of €25.00 of API key ci is used up", to: "/limits" },
    ]);
    expect(eventWords(event)).toBe("The monthly budget of €25.00 of API key key_1 is used up");
  });

  it("tells what it knows", () => {
    expect(eventWords({ ...event, type: "budget.soft", data: {} })).toBe(
      "The budget reached its soft limit",
    );
    expect(eventWords({ ...event, data: { budget: "credit" } })).toBe(
      "The prepaid credit is used up",
    );
  });
});

describe("a month", () => {
  it("has all its days, those to come without a cost", () => {
    const of = {
      currency: "USD",
      spent: "3",
      spent_last_month: "0",
      days: [{ day: "2026-02-02", amount: "3.000000000000" }],
      full_days: 0,
      mean_day: null,
      projected: null,
      low: null,
      high: null,
    };
    const forecast = {
      start: "2026-02-01T00:00:00Z",
      end: "2026-03-01T00:00:00Z",
      as_of: "2026-02-03T10:00:00Z",
    } as Forecast;
    const { times, values } = daysOf(forecast, of);
    expect([times.length, values.length]).toEqual([28, 28]);
    expect(values.slice(0, 4)).toEqual([0, 3, 0, null]);
    expect(times[1]).toBe(Date.UTC(2026, 1, 2) / 1000);
  });
});

describe("a budget's bar", () => {
  it("is full when it is used up", () => {
    expect([partOf("25", "100"), partOf("250", "100"), partOf("1", "0")]).toEqual([0.25, 1, 0]);
  });
});
