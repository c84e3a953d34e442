import { expect, test } from "vitest";
import type { Answer, Lane } from "./model";
import { CELLS_MAX, cellAt, gradeOf, lanesOf, requestsOf, rowsOf, stepOf } from "./model";

const answer: Answer = {
  object: "timeseries",
  start: 0,
  end: 180,
  step_s: 60,
  times: [0, 60, 120],
  known_until: 100,
  total: 2,
  sums: [],
  series: [
    {
      metric: "ttft_attainment",
      unit: "part",
      tenant_id: "tenant_1",
      tenant_name: "acme",
      service_class: "priority",
      target_ms: 500,
      values: [0.5, 1, null],
      met: [5, 4, 0],
      promised: [10, 4, 0],
    },
    {
      metric: "ttft_attainment",
      unit: "part",
      tenant_id: null,
      service_class: "flex",
      values: [null, null, null],
      met: [0, 0, 0],
      promised: [0, 0, 0],
    },
  ],
};

test("a lane for each tenant and class that was promised something", () => {
  const lanes = lanesOf(answer, "ttft_attainment", true);
  expect(lanes.map(({ name, met, promised, targetMs }) => [name, met, promised, targetMs])).toEqual(
    [["acme", 9, 14, 500]],
  );
  expect(lanes[0]?.cells.map(({ grade }) => grade)).toEqual(["missed", "met", "unknown"]);
  expect(lanesOf(answer, "tpot_attainment", true)).toEqual([]);
});

test("the table holds every cell with a promise, newest first", () => {
  const rows = rowsOf(lanesOf(answer, "ttft_attainment", true));
  expect(rows.map(({ cell }) => [cell.startS, cell.met, cell.promised])).toEqual([
    [60, 4, 4],
    [0, 5, 10],
  ]);
});

test("only all is all", () => {
  expect(gradeOf(999_999, 1_000_000)).toBe("near");
  expect(gradeOf(899, 1000)).toBe("missed");
  expect(gradeOf(0, 0)).toBe("none");
});

test("a range has no more cells than fit", () => {
  for (const [range, step] of [
    [3_600, "1m"],
    [21_600, "5m"],
    [86_400, "15m"],
    [604_800, "3h"],
    [2_592_000, "6h"],
  ] as const) {
    expect(stepOf(0, range)).toBe(step);
  }
  expect(CELLS_MAX).toBeLessThanOrEqual(120);
});

test("a part of a lane leads to its requests", () => {
  const [lane] = lanesOf(answer, "ttft_attainment", true) as [Lane];
  expect(requestsOf(lane, "ttft_attainment", 60, 120)).toBe(
    "/operator/requests?start=60&end=180&sort=-ttft&tenant=tenant_1",
  );
  expect(requestsOf(lane, "tpot_attainment", 60, 120)).toContain("sort=-tpot");
  expect(cellAt(lane, 0.5)).toBe(1);
  expect(cellAt(lane, 1)).toBe(2);
});
