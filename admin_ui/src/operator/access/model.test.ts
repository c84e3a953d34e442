import { expect, test } from "vitest";
import { type AdminKey, stateOf, untilEndOf } from "./model";

const KEY: AdminKey = {
  object: "admin_key",
  id: "adminkey_1",
  name: "laptop",
  role: "operator",
  source: "api",
  prefix: "abcd1234",
};

test("the state of an admin key", () => {
  const now = new Date("2026-12-01T00:00:00Z");
  const past = "2026-11-30T00:00:00Z";
  expect(stateOf(KEY, now)).toBe("active");
  expect(stateOf({ ...KEY, expires_at: past }, now)).toBe("expired");
  expect(stateOf({ ...KEY, expires_at: past, revoked_at: past }, now)).toBe("revoked");
  expect(
    stateOf({ ...KEY, previous: { prefix: "x", expires_at: "2027-01-01T00:00:00Z" } }, now),
  ).toBe("rotating");
  expect(stateOf({ ...KEY, source: "configured" }, now)).toBe("configured");
});

test("the last day counts", () => {
  expect(untilEndOf("2027-01-31")).toBe("2027-01-31T23:59:59Z");
  expect(untilEndOf("")).toBeNull();
});
