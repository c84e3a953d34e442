import { expect, test } from "vitest";
import { alone, nearest, stacked } from "./series";

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

test("what is known alone", () => {
  expect(alone([null, 3, null, 4, 5])).toEqual([1]);
  expect(alone([7])).toEqual([0]);
  expect(alone([1, 2])).toBeNull();
});
