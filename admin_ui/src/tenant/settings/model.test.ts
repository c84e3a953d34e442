import { expect, test } from "vitest";
import { daysOf, daysWords } from "./model";

test("days are whole numbers from 1 to the longest", () => {
  const days = (texts: string[]) => texts.map((text) => daysOf(text, 90));
  expect(days(["1", "30", "90"])).toEqual([1, 30, 90]);
  expect(days(["", "0", "91", "1.5", "-3", "1e1", "1000"])).toEqual(Array(7).fill(null));
  expect([1, 2].map(daysWords)).toEqual(["1 day", "2 days"]);
});
