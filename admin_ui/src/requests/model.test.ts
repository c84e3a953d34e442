import { describe, expect, it } from "vitest";
import {
  endWord,
  kindOf,
  kindWord,
  lanesOf,
  lengthOf,
  queryOf,
  type Receipt,
  type Sequence,
  speedOf,
} from "./model";

const NOW_S = 1_795_000_000;
const asked = (text: string) => queryOf(new URLSearchParams(text), NOW_S);

describe("the address", () => {
  it("says what to ask for", () => {
    expect(asked("adapter=tone@2&class=flex&status=failed&min_queue_ms=500&sort=-queue")).toEqual({
      adapter: "tone@2",
      class: "flex",
      status: "failed",
      min_queue_ms: 500,
      sort: "-queue",
      finish_reason: undefined,
    });
  });

  it("asks for the base model by an empty adapter, and for nothing by other empty ones", () => {
    expect(asked("adapter=&class=").adapter).toBe("");
    expect(asked("adapter=&class=").class).toBeUndefined();
  });

  it("leaves out what makes no sense", () => {
    const found = asked("status=odd&sort=oldest&min_ttft_ms=x&start=9&end=3&range=year");
    expect(Object.values(found).filter((value) => value !== undefined)).toEqual([]);
  });

  it("takes a chart's range, or so long until now", () => {
    expect(asked("start=1700000000&end=1700000060&range=1h")).toMatchObject({
      start: "2023-11-14T22:13:20.000Z",
      end: "2023-11-14T22:14:20.000Z",
    });
    expect(asked("range=24h").start).toBe(new Date((NOW_S - 86_400) * 1000).toISOString());
    expect(asked("range=24h").end).toBeUndefined();
  });

  it("asks for a name alone", () => {
    expect(asked("q= req_1 &status=failed")).toEqual({ q: "req_1" });
  });
});

function sequence(changes: Partial<Sequence>): Sequence {
  return {
    sequence: 0,
    finish_reason: "stop",
    finished_at: "2026-11-20T10:00:02.000000Z",
    class: "default",
    adapter_digest: null,
    residency: null,
    tokens: { uncached_prefill: 10, cached_prefill: 0, output: 31 },
    cold_loads: 0,
    preemptions: 0,
    times_ms: { queue: 125.5, adapter_load: 80.25, prefill: 374.5, decode: 1500, total: 2000 },
    price_version: null,
    currency: null,
    waits_because: null,
    meters: null,
    amount: null,
    ...changes,
  };
}

describe("a waterfall", () => {
  it("has parts whose sum is the total", () => {
    const [lane] = lanesOf({ sequences: [sequence({})] } as Receipt);
    expect(lane?.segments.map(({ name, ms }) => [name, ms])).toEqual([
      ["Queue", 45.25],
      ["Adapter load", 80.25],
      ["Prefill", 374.5],
      ["Decode", 1500],
    ]);
    expect(lane?.segments.reduce((sum, { ms }) => sum + ms, 0)).toBe(lane?.totalMs);
    expect(lane?.segments[3]?.fromMs).toBe(500);
  });

  it("puts sequences at their times, and ends with the last", () => {
    const later = sequence({ sequence: 1, finished_at: "2026-11-20T10:00:02.500000Z" });
    const lanes = lanesOf({ sequences: [sequence({}), later] } as Receipt);
    expect(lanes.map(({ fromMs }) => fromMs)).toEqual([0, 500]);
    expect(lengthOf(lanes)).toBe(2500);
  });

  it("knows no prefill without a first token", () => {
    const times_ms = { queue: 10, adapter_load: 0, prefill: null, decode: null, total: 25 };
    const [lane] = lanesOf({ sequences: [sequence({ times_ms })] } as Receipt);
    expect(lane?.segments.at(-1)).toEqual({ name: "Until the end", fromMs: 10, ms: 15 });
  });

  it("says how fast it decoded", () => {
    expect(speedOf(sequence({}))).toBe(20);
    expect(
      speedOf(sequence({ tokens: { uncached_prefill: 1, cached_prefill: 0, output: 1 } })),
    ).toBeNull();
  });
});

it("an embedding is embedded, and was not cut off at max_tokens", () => {
  expect(endWord("completed", "length", "embd")).toBe("embedded");
  expect(endWord("completed", "length", "chatcmpl")).toBe("max tokens");
  expect(endWord("failed", "error", "embd")).toBe("failed");
  expect(kindWord(kindOf("embd_0123"))).toBe("embedding");
  expect(kindWord("new")).toBe("new");
});
