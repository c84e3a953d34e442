import { expect, test } from "vitest";
import type { Schemas } from "../../../api/client";
import {
  guardLines,
  reweigh,
  sameTargets,
  sendable,
  stageText,
  targetsText,
  versionSeries,
} from "./model";

const sum = (targets: { weight: number }[]) => targets.reduce((all, { weight }) => all + weight, 0);

test("whatever one weight becomes, all add up to 100 and the others keep their order", () => {
  const start = [
    { version: 1, weight: 50 },
    { version: 2, weight: 33 },
    { version: 3, weight: 17 },
  ];
  for (let weight = -5; weight <= 105; weight += 1) {
    const next = reweigh(start, 2, weight);
    expect(sum(next)).toBe(100);
    const [one, , three] = next.map((target) => target.weight);
    expect(one ?? 0).toBeGreaterThanOrEqual(three ?? 0);
    expect(Math.abs((one ?? 0) - ((100 - (next[1]?.weight ?? 0)) * 50) / 67)).toBeLessThan(1);
  }
});

test("a new version joins, one alone has all, and what has 0 is not sent", () => {
  expect(reweigh([{ version: 1, weight: 100 }], 2, 5)).toEqual([
    { version: 1, weight: 95 },
    { version: 2, weight: 5 },
  ]);
  expect(reweigh([], 4, 20)).toEqual([{ version: 4, weight: 100 }]);
  const all = reweigh([{ version: 1, weight: 100 }], 2, 100);
  expect(sendable(all)).toEqual([{ version: 2, weight: 100 }]);
  expect(sameTargets(all, [{ version: 2, weight: 100 }])).toBe(true);
  expect(reweigh(all, 2, 40)).toEqual([
    { version: 1, weight: 60 },
    { version: 2, weight: 40 },
  ]);
});

test("targets and stages in words", () => {
  expect(
    targetsText([
      { version: 1, weight: 5 },
      { version: 2, weight: 95 },
    ]),
  ).toBe("v2 95%, v1 5%");
  expect(stageText({ percent: 5, after_s: 600, after_requests: 20 })).toBe(
    "10 min and 20 requests",
  );
  expect(stageText({ percent: 100 })).toBe("observed for one minute");
});

test("a guard's limit is what those before have and what it allows beside it", () => {
  const side = (errors: number, ttft: number | null) => ({
    requests: 100,
    errors: errors * 100,
    error_rate: errors,
    ttft_ms: ttft,
  });
  const rollout = {
    guard: { error_rate: 0.05, ttft_ratio: 1.5, score_drop: null, min_requests: 20 },
    numbers: { version: side(0.08, 90), before: side(0.01, 80) },
  } as Schemas["Rollout"];
  expect(guardLines(rollout)).toEqual([
    { what: "Errors", version: "8.0%", before: "1.0%", limit: "6.0%", isBeyond: true },
    {
      what: "TTFT, median",
      version: "90 ms",
      before: "80 ms",
      limit: "120 ms",
      isBeyond: false,
    },
  ]);
});

test("series by version: requests, the part that failed, the median", () => {
  const of = (metric: string, kind: string | null, version: number, values: (number | null)[]) => ({
    metric,
    kind,
    version,
    values,
    unit: "count" as const,
  });
  const gathered = versionSeries([
    of("finished", null, 2, [0, 4]),
    of("ended", "stop", 2, [0, 3]),
    of("ended", "error", 2, [0, 1]),
    of("ttft", "p50", 2, [null, 80]),
    of("ttft", "p99", 2, [null, 99]),
    of("finished", null, 1, [2, 2]),
  ]);
  expect(gathered).toEqual([
    { version: 1, requests: [2, 2], failed: [0, 0], ttftMs: [] },
    { version: 2, requests: [0, 4], failed: [null, 0.25], ttftMs: [null, 80] },
  ]);
});
