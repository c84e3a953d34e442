import { expect, test } from "vitest";
import { currencyWords, shownIn } from "./currency";

test("a plan's budgets name their currency, other numbers do not", () => {
  expect(shownIn("budget", "12.5", ["EUR"])).toBe("€12.50");
  expect(shownIn("budget_day", "12.5", ["EUR", "USD"])).toBe("12.5 EUR or USD");
  expect(shownIn("budget", "12.5", [])).toBe("12.5, no price list yet");
  expect(shownIn("budget", "", ["EUR"])).toBe("no budget");
  expect(shownIn("requests_per_min", "1200", ["EUR"])).toBe("1,200");
  expect(currencyWords(["EUR", "USD"])).toBe("EUR or USD");
});
