import { expect, test } from "vitest";
import { accountName, balanceOf, kindName } from "./model";

const balance = (account: string, amount: string, currency = "USD") =>
  ({
    object: "ledger_balance",
    account,
    nature: "asset",
    currency,
    balance: amount,
    entries: 1,
  }) as const;

test("credit is what is owed to the tenant, by currency", () => {
  const balances = [
    balance("credit:granted", "-5.000000000000"),
    balance("credit:bought", "-2.500000000000"),
    balance("credit:bought", "-1.000000000000", "EUR"),
    balance("unbilled", "0.250000000000"),
  ];
  const credit = balanceOf(balances, ["credit:granted", "credit:bought"], -1);
  expect(credit).toEqual({ USD: "7.500000000000", EUR: "1.000000000000" });
  expect(balanceOf(balances, ["unbilled"])).toEqual({ USD: "0.250000000000" });
  expect(balanceOf([], ["unbilled"])).toEqual({});
});

test("accounts and kinds have names, and unknown ones are shown as they are", () => {
  expect(accountName("revenue:output")).toBe("Output tokens");
  expect(accountName("revenue:minimum")).toBe("Monthly minimum");
  expect(accountName("revenue:other")).toBe("revenue:other");
  expect(kindName("grant")).toBe("Credit received");
  expect(kindName("new_kind")).toBe("new_kind");
});
