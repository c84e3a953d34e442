import { describe, expect, it } from "vitest";
import type { Adapter } from "../adapters/model";
import { commonStart, largestKl, rowsOf, shownVersion } from "./model";

const PICTURE = {
  modules: ["q_proj", "v_proj"],
  layers: [0, 3],
  rank: [
    [8, 8],
    [4, null],
  ],
  norm_a: [
    [1, 2],
    [4, null],
  ],
  norm_b: [
    [0, 0],
    [0, null],
  ],
  product: [
    [0.5, 1],
    [0.25, null],
  ],
};

describe("rowsOf", () => {
  it("has a cell for each module and layer, tinted by its part of the largest", () => {
    const rows = rowsOf(PICTURE, "norm_a");
    expect(rows.map(({ module }) => module)).toEqual(["q_proj", "v_proj"]);
    expect(rows[0]?.cells.map(({ layer, part }) => [layer, part])).toEqual([
      [0, 0.25],
      [3, 0.5],
    ]);
    expect(rows[1]?.cells[1]).toEqual({ layer: 3, value: null, part: 0 });
  });

  it("tints nothing where all is zero", () => {
    expect(rowsOf(PICTURE, "norm_b").flatMap(({ cells }) => cells.map(({ part }) => part))).toEqual(
      [0, 0, 0, 0],
    );
  });
});

describe("shownVersion", () => {
  const adapter = {
    version: 3,
    versions: [{ version: 3 }, { version: 2 }, { version: 1 }],
    serving: { alias: null, versions: [{ version: 2 }] },
  } as Adapter;

  it("is what was asked for, else what serves, else the newest", () => {
    expect(shownVersion(adapter, "1")).toBe(1);
    expect(shownVersion(adapter, "9")).toBe(2);
    expect(shownVersion(adapter, null)).toBe(2);
    expect(shownVersion({ ...adapter, serving: { alias: null, versions: [] } }, null)).toBe(3);
  });
});

describe("samples", () => {
  it("have a largest bound and a common start", () => {
    const sample = { prompt: "", base_answer: "", answer: "" };
    expect(
      largestKl([
        { ...sample, kl: [0.1, 2] },
        { ...sample, kl: [] },
      ]),
    ).toBe(2);
    expect(largestKl([])).toBe(0);
    expect(commonStart("abcd", "abxx")).toBe(2);
    expect(commonStart("", "a")).toBe(0);
  });
});
