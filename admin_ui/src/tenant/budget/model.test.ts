import { describe, expect, test } from "vitest";
import {
  type AccountBudget,
  alertOf,
  bodyOf,
  currenciesFor,
  faultsIn,
  fieldsOf,
  gapOf,
  hiddenAs,
  inFormWords,
  isSet,
  levelOf,
  usedPart,
} from "./model";

const NONE: AccountBudget = {
  object: "account_budget",
  tenant_id: "tenant_a",
  amount: null,
  currency: "USD",
  hard: false,
  binds: false,
  thresholds: [],
  spent: null,
  alerts: [],
  currencies: ["EUR", "USD"],
  period: "2026-11",
  resets_at: "2026-12-01T00:00:00Z",
  updated_at: null,
};
const at = "2026-11-20T10:00:00Z";
const SET = {
  ...NONE,
  amount: "25.500000000000",
  spent: "20.400000000000",
  thresholds: [50, 80, 100],
  alerts: [50, 80].map((threshold) => ({ threshold, reached_at: at })),
};

test("a form begins with what is set, or with the usual thresholds", () => {
  expect(fieldsOf(NONE)).toEqual({
    amount: "",
    currency: "USD",
    hard: false,
    thresholds: ["50", "80", "100"],
  });
  expect(bodyOf(fieldsOf(SET))).toEqual({
    amount: "25.5",
    currency: "USD",
    hard: false,
    thresholds: [50, 80, 100],
  });
  expect(fieldsOf({ ...SET, amount: "100.000000000000" }).amount).toBe("100");
});

test("what cannot be sent is said", () => {
  const good = fieldsOf(SET);
  expect(faultsIn(good)).toEqual({});
  for (const amount of ["", "0", "0.00", "-1", "1e3", "ten"])
    expect(faultsIn({ ...good, amount })).toHaveProperty("amount");
  for (const each of ["0", "201", "50.5", "x"])
    expect(faultsIn({ ...good, thresholds: [each] })).toHaveProperty("thresholds");
});

test("a currency without a price any more stays to choose from", () => {
  expect(currenciesFor({ ...SET, currency: "GBP" })).toEqual(["EUR", "GBP", "USD"]);
});

describe("the alert", () => {
  test("is the highest threshold, in the budget's currency", () => {
    expect(alertOf(NONE)).toBeNull();
    expect(alertOf({ ...SET, alerts: [] })).toBeNull();
    expect(alertOf(SET)).toMatch(/^80% of the account budget of \$25\.50 .* \$20\.40 is spent/);
    expect(isSet(SET) && levelOf(SET)).toBe("near");
    expect(isSet(SET) && usedPart(SET)).toBeCloseTo(0.8);
  });

  test("says what a hard one does", () => {
    const over = { ...SET, spent: "26.0", currency: "EUR" };
    expect(alertOf(over)).toMatch(/€25\.50 is used up: €26\.00 is spent/);
    expect(alertOf({ ...over, hard: true, binds: true })).toMatch(
      /Requests are refused until 1 Dec 2026/,
    );
    expect(isSet(over) && usedPart(over)).toBe(1);
  });

  test("that was hidden comes back with the next threshold and the next month", () => {
    const hidden = hiddenAs(SET);
    const next = { ...SET, alerts: [...SET.alerts, { threshold: 100, reached_at: at }] };
    expect(hiddenAs({ ...SET, spent: "21" })).toBe(hidden);
    expect(hiddenAs(next)).not.toBe(hidden);
    expect(hiddenAs({ ...SET, period: "2026-12" })).not.toBe(hidden);
  });
});

test("what a budget does not cover is said", () => {
  expect(gapOf(NONE)).toBeNull();
  expect(gapOf({ ...SET, currencies: ["USD"] })).toBeNull();
  expect(gapOf({ ...SET, currencies: [] })).toBeNull();
  expect(gapOf(SET)).toBe("Usage priced in EUR does not count.");
  expect(gapOf({ ...SET, hard: true, binds: true })).toMatch(/does not count and is not refused/);
  const left = { ...SET, currencies: ["EUR"] };
  expect(gapOf(left)).toMatch(/in EUR now and no longer in USD: this budget sends no alerts/);
  expect(alertOf({ ...left, alerts: [] })).toBeNull();
  const hard = { ...left, hard: true, spent: "26" };
  expect(alertOf(hard)).toMatch(/does not bind.* refuses no requests\. Set one in EUR\./);
  expect(hiddenAs(hard)).not.toBe(hiddenAs({ ...hard, binds: true }));
});

test("a refusal is told in the form's words", () => {
  const error = new Error("Two currencies; set hard to false to get alerts only.");
  expect(inFormWords(error).message).toBe(
    "Two currencies; clear “Refuse requests when the budget is used up” to get alerts only.",
  );
});
