import { expect, test } from "vitest";
import { isTouched } from "./topics";

test("a topic touches the paths that it is about, on both sides", () => {
  expect(isTouched("/v1/adapters/{name}", ["adapters"])).toBe(true);
  expect(isTouched("/admin/v1/tenants/{tenant_id}/api_keys", ["keys"])).toBe(true);
  expect(isTouched("/v1/adapters", ["invoices"])).toBe(false);
  expect(isTouched("keys", ["keys"])).toBe(true);
  expect(isTouched("/admin/v1/timeseries", ["service"])).toBe(true);
  expect(isTouched("/admin/v1/timeseries", ["requests"])).toBe(false);
});

test("without topics everything is touched, and a new topic touches its own path", () => {
  expect(isTouched("/v1/anything", null)).toBe(true);
  expect(isTouched("/admin/v1/waits", ["waits"])).toBe(true);
});
