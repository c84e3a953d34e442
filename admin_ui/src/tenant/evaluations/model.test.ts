import { expect, test } from "vitest";
import { areApart, intervalText, readItems, SCORINGS, scoreText } from "./model";

test("each example is an item of its scoring", () => {
  for (const { value, example } of SCORINGS)
    expect(readItems(`${example}\n\n${example}`, value)).toEqual({ count: 2, problem: null });
});

test("what is wrong is said by line", () => {
  expect(readItems('{"prompt": "a", "expected": "b"}\nnot json', "exact").problem).toBe(
    "Line 2 is not JSON.",
  );
  expect(readItems('\n{"prompt": "a"}', "exact").problem).toBe(
    'Line 2 has no "expected", which exact needs.',
  );
  expect(readItems("[1]", "exact").problem).toBe("Line 1 is not a JSON object.");
});

test("scores", () => {
  expect(scoreText("exact", 0.9)).toBe("90.0%");
  expect(scoreText("loglikelihood", -1.25)).toBe("-1.250");
  expect(scoreText("exact", null)).toBe("–");
  expect(intervalText("exact", 0.5, 0.75)).toBe("50.0% to 75.0%");
  expect(areApart({ low: 0.1, high: 0.2 }, { low: 0.3, high: 0.4 })).toBe(true);
  expect(areApart({ low: 0.1, high: 0.35 }, { low: 0.3, high: 0.4 })).toBe(false);
});
