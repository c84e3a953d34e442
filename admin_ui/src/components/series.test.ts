import { expect, test } from "vitest";
import { nearest, stacked } from "./series";

const of = (values: (number | null)[]) => ({ name: "a", color: "red", values });

test("stacks add up, and what is unknown adds nothing", () => {
  expect(stacked([of([1, null]), of([2, 3])])).toEqual([
    [1, null],
    [3, 3],
  ]);
});

test("the nearest time", () => {
  expect(nearest([10, 20, 30], 24)).toBe(1);
  expect(nearest([], 24)).toBe(-1);
});
