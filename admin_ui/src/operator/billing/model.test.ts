import { expect, test } from "vitest";
import {
  budgetUse,
  curveOf,
  isMonth,
  type MonthCost,
  months,
  monthsCosts,
  totalsOf,
} from "./model";

test("a month adds up by day and leads to its forecast", () => {
  const curve = curveOf(["1", "0", "2.5"], "2026-11-01", "2026-12-01", "35");
  expect(curve.times).toHaveLength(30);
  expect(curve.times[0]).toBe(Date.parse("2026-11-01T00:00:00Z") / 1000);
  expect(curve.spent.slice(0, 4)).toEqual([1, 1, 3.5, null]);
  expect(curve.ahead[1]).toBeNull();
  expect(curve.ahead[2]).toBe(3.5);
  expect(curve.ahead[29]).toBeCloseTo(35, 9);
});

test("days without costs are days all the same", () => {
  const known = [
    { day: "2026-11-03", amount: "3" },
    { day: "2026-10-31", amount: "9" },
  ];
  expect(monthsCosts(known, "2026-11-01", "2026-11-04")).toEqual(["0", "0", "3", "0"]);
});

test("a month that is over leads nowhere", () => {
  const days = Array.from({ length: 31 }, () => "0.1");
  const curve = curveOf(days, "2026-10-01", "2026-11-01", null);
  expect(curve.spent[30]).toBe(3.1);
  expect(curve.ahead.every((each) => each === null)).toBe(true);
});

function cost(currency: string, amount: string, projected?: string): MonthCost {
  const forecast = projected ? { projected, low: null, high: null, full_days: 3 } : null;
  return { currency, amount, days: [], forecast };
}
const BUDGET = { amount: "100", currency: "USD", soft: 0.8, action: "refuse" as const };

test("a budget is compared with what was spent in its own currency", () => {
  expect(budgetUse({ budget: null, costs: [cost("USD", "1")] })).toBeNull();
  expect(budgetUse({ budget: BUDGET, costs: [cost("EUR", "500")] })).toEqual({
    part: 0,
    state: "ok",
    spent: "0",
  });
  expect(budgetUse({ budget: BUDGET, costs: [cost("USD", "80")] })?.state).toBe("soft");
  expect(budgetUse({ budget: BUDGET, costs: [cost("USD", "10", "150")] })?.state).toBe(
    "leads over",
  );
  expect(budgetUse({ budget: BUDGET, costs: [cost("USD", "100")] })?.state).toBe("over");
});

test("totals of invoices stay apart by currency", () => {
  const of = [
    { currency: "USD", total: "1.10" },
    { currency: "EUR", total: "2" },
    { currency: "USD", total: "2.20" },
  ];
  expect(totalsOf(of)).toEqual({ EUR: "2.000000000000", USD: "3.300000000000" });
});

test("months of the address", () => {
  expect(months(new Date("2026-01-31T23:00:00Z"), 3)).toEqual(["2026-01", "2025-12", "2025-11"]);
  expect(isMonth("2026-13")).toBe(false);
});
