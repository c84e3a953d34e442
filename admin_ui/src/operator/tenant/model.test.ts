import { expect, test } from "vitest";
import type { Schemas } from "../../api/client";
import { creditOf, grantBody, grantFault, NEW_GRANT, tabOf, tokensOf } from "./model";

function balance(account: string, currency: string, amount: string): Schemas["LedgerBalance"] {
  return {
    object: "ledger_balance",
    account,
    currency,
    balance: amount,
    nature: "liability",
    entries: 1,
  };
}

test("what is left of credit is what the books owe, by currency", () => {
  const balances = [
    balance("credit:bought", "USD", "-10.000000000000"),
    balance("credit:granted", "USD", "-2.5"),
    balance("credit:granted", "EUR", "0.000000000001"),
    balance("credit:lapsed", "USD", "-99"),
    balance("unbilled", "USD", "7"),
  ];
  expect(creditOf(balances)).toEqual({ EUR: "-0.000000000001", USD: "12.500000000000" });
});

test("a grant says what is wrong with it, and holds through its last day", () => {
  expect(grantFault({ ...NEW_GRANT, amount: "0.00" })).toContain("above 0");
  expect(grantFault({ ...NEW_GRANT, amount: "5", currency: "usd" })).toContain("currency");
  expect(grantFault({ ...NEW_GRANT, amount: "5" })).toBeNull();
  expect(grantBody({ ...NEW_GRANT, amount: "5.5", until: "2026-12-31", note: " x " })).toEqual({
    amount: "5.5",
    kind: "granted",
    currency: null,
    expires_at: "2027-01-01T00:00:00.000Z",
    note: "x",
  });
});

test("tokens by day and class, where a class has none it has 0", () => {
  const result = {
    requests: 1,
    sequences: 1,
    prompt_tokens: 10,
    cached_tokens: 4,
    uncached_tokens: 6,
    output_tokens: 5,
  };
  const page: Pick<Schemas["UsagePage"], "data"> = {
    data: [
      {
        object: "bucket",
        start: "2026-11-01T00:00:00Z",
        end: "2026-11-02T00:00:00Z",
        results: [
          { ...result, tier: "default" },
          { ...result, tier: "flex" },
        ],
      },
      {
        object: "bucket",
        start: "2026-11-02T00:00:00Z",
        end: "2026-11-03T00:00:00Z",
        results: [{ ...result, tier: "flex" }],
      },
    ],
  };
  expect(tokensOf(page)).toEqual({
    times: [1793491200, 1793577600],
    classes: [
      { name: "default", values: [15, 0] },
      { name: "flex", values: [15, 15] },
    ],
  });
});

test("an unknown tab is the first", () => {
  expect(tabOf("keys")).toBe("keys");
  expect(tabOf("toString")).toBe("overview");
});
