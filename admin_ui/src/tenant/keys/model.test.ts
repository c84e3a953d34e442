import { describe, expect, test } from "vitest";
import {
  type ApiKey,
  changeBody,
  createBody,
  fieldsOf,
  limitWords,
  NEW_KEY,
  stateOf,
} from "./model";

const KEY: ApiKey = {
  object: "api_key",
  id: "key_1",
  name: "ci",
  prefix: "abcd1234",
  scopes: ["inference"],
  models: ["support"],
  limits: {
    requests_per_min: 10,
    tokens_per_min: null,
    parallel_requests: null,
    budget: "5.500000000000",
    budget_day: null,
    budget_soft: null,
    budget_action: "refuse",
  },
  previous: null,
  created_at: "2026-11-01T00:00:00Z",
  created_by: null,
  expires_at: null,
  revoked_at: null,
  last_used_at: null,
};

describe("what the form sends", () => {
  test("a new key without bounds", () => {
    const body = createBody({ ...NEW_KEY, scopes: ["usage"] });
    expect(body.scopes).toEqual(["usage"]);
    expect(body.models).toBeNull();
    expect(body.expires_at).toBeNull();
    expect(body.limits).toEqual({});
  });

  test("bounds as the API takes them", () => {
    const body = createBody({
      ...NEW_KEY,
      name: " ci ",
      models: ["support", "json@2"],
      expires: "2027-01-31",
      requests: "10",
      budget: "12.50",
    });
    expect(body.name).toBe("ci");
    expect(body.models).toEqual(["support", "json@2"]);
    expect(body.expires_at).toBe("2027-01-31T23:59:59Z");
    expect(body.limits).toEqual({ requests_per_min: 10, budget: "12.50" });
  });

  test("a soft budget is a percentage here and a part there", () => {
    const before = fieldsOf({ ...KEY, limits: { ...KEY.limits, budget_soft: 0.07 } });
    expect(before.soft).toBe("7");
    expect(changeBody(before, { ...before, soft: "80", degrade: true })).toEqual({
      limits: { budget_soft: 0.8, budget_action: "degrade" },
    });
    expect(createBody({ ...NEW_KEY, soft: "29" }).limits).toEqual({ budget_soft: 0.29 });
  });

  test("a change holds nothing but what differs", () => {
    const before = fieldsOf(KEY);
    expect(changeBody(before, before)).toEqual({});
    expect(changeBody(before, { ...before, name: "new" })).toEqual({ name: "new" });
    expect(changeBody(before, { ...before, models: [], requests: "", tokens: "7" })).toEqual({
      models: null,
      limits: { requests_per_min: null, tokens_per_min: 7 },
    });
  });
});

test("the state of a key", () => {
  const now = new Date("2026-12-01T00:00:00Z");
  expect(stateOf(KEY, now)).toBe("active");
  expect(stateOf({ ...KEY, expires_at: "2026-11-30T00:00:00Z" }, now)).toBe("expired");
  expect(stateOf({ ...KEY, revoked_at: "2026-11-30T00:00:00Z" }, now)).toBe("revoked");
  const previous = { prefix: "x", expires_at: "2026-12-02T00:00:00Z" };
  expect(stateOf({ ...KEY, previous }, now)).toBe("rotating");
});

test("limits in words", () => {
  expect(limitWords(KEY.limits)).toEqual(["10 requests/min", "5.5 per month"]);
  const limits = { ...KEY.limits, budget: "100.000000000000", budget_day: "0" };
  expect(limitWords(limits).slice(1)).toEqual(["100 per month", "0 per day"]);
  const soft = { ...limits, budget_soft: 0.8, budget_action: "degrade" as const };
  expect(limitWords(soft).at(-1)).toBe("flex from 80% of budget");
});
