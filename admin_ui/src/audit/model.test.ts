import { expect, test } from "vitest";
import { actorOf, changesOf, timesOf } from "./model";

test("what a change has changed, field by field", () => {
  const before = { name: "ci", limits: { budget: "5", requests: null }, scopes: ["usage"] };
  const after = { name: "ci", limits: { budget: "7", requests: null }, models: ["a"] };
  expect(changesOf(before, after)).toEqual([
    { path: "limits.budget", kind: "changed", before: "5", after: "7" },
    { path: "limits.requests", kind: "same", before: "none", after: "none" },
    { path: "models", kind: "added", before: null, after: '["a"]' },
    { path: "name", kind: "same", before: "ci", after: "ci" },
    { path: "scopes", kind: "removed", before: '["usage"]', after: null },
  ]);
});

test("what was made was nothing before, and an empty field is one", () => {
  expect(changesOf(null, { a: {}, b: 1 })).toEqual([
    { path: "a", kind: "added", before: null, after: "{}" },
    { path: "b", kind: "added", before: null, after: "1" },
  ]);
  expect(changesOf(null, null)).toEqual([]);
});

test("days are whole, and the last one counts", () => {
  expect(timesOf("2026-12-31", "2026-12-31")).toEqual({
    start: "2026-12-31T00:00:00Z",
    end: "2027-01-01T00:00:00Z",
  });
  expect(timesOf("soon", null)).toEqual({ start: undefined, end: undefined });
});

test("an actor without a name is called as the log calls it", () => {
  expect(actorOf({ actor: "api_key:key_1", actor_name: "ci" })).toBe("ci");
  expect(actorOf({ actor: "api_key:key_1", actor_name: null })).toBe("api_key:key_1");
});
