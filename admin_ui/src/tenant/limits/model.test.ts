import { expect, test } from "vitest";
import { budgetParts, money, partOf, planRows, secondsUntil } from "./model";
import type { Limits } from "./queries";

const LIMITS: Limits = {
  object: "limits",
  plan: "standard",
  sla_class: "default",
  tiers: ["default"],
  ttft_ms: null,
  tpot_ms: null,
  requests_per_min: { limit: 60, used: 45, remaining: 15, reset_ms: 45_000 },
  tokens_per_min: { limit: null, used: 1200, remaining: null, reset_ms: 0 },
  parallel_requests: { limit: 0, used: 0 },
  key: null,
  local: false,
  currency: "USD",
  adapters: 10,
  adapters_used: null,
  adapter_bytes: 1024,
  adapter_bytes_used: 2048,
  budget: null,
  budgets: [],
  credit: null,
  credits: [],
};

test("each limit says what is used and left", () => {
  const [requests, tokens, parallel, adapters, bytes] = planRows(LIMITS);
  expect(requests).toMatchObject({ used: "45", limit: "60", left: "15", part: 0.75 });
  expect(requests?.note).toBe("resets in 45 s");
  expect(tokens).toMatchObject({ used: "1,200", limit: null, left: null, part: null });
  expect(parallel).toMatchObject({ limit: "0", left: "0", part: 1 });
  expect(adapters).toMatchObject({ used: "unknown", limit: "10", part: null });
  expect(bytes).toMatchObject({ used: "2.0 KiB", left: "0 B", part: 1 });
});

test("parts stay within the bar", () => {
  expect(partOf(7, null)).toBeNull();
  expect(partOf(7, 4)).toBe(1);
  const budget = {
    name: "plan_month",
    api_key_id: null,
    currency: "USD",
    state: "ok",
    binds: true,
    resets_at: null,
  } as const;
  expect(budgetParts({ ...budget, cap: "10", spent: "9", held: "4" })).toEqual({
    spent: 0.9,
    held: 1 - 0.9,
  });
  expect(budgetParts({ ...budget, cap: "0", spent: "0", held: "0" })).toEqual({
    spent: 1,
    held: 0,
  });
  expect(secondsUntil(0)).toBe("resets now");
});

test("money without a currency that is known is the number", () => {
  expect(money("1234.500000", null)).toBe("1,234.50");
  expect(money("1234.500000", "USD")).toBe("$1,234.50");
  expect(money("0.000001", "CHF")).toBe("0.000001 CHF");
});
