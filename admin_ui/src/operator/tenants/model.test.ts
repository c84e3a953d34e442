import { expect, test } from "vitest";
import { ApiError } from "../../api/errors";
import { filtersOf, namesakesIn } from "./model";

test("filters come from the address, and what is none is left out", () => {
  const params = new URLSearchParams("q=acme&status=gone&sort=-spend&currency=EUR&plan=free");
  expect(filtersOf(params)).toEqual({ q: "acme", sort: "-spend", currency: "EUR", plan: "free" });
  expect(filtersOf(new URLSearchParams("sort=color&currency=euro"))).toEqual({ sort: "-created" });
});

test("a name that is taken says by whom; other errors say nothing", () => {
  const message =
    "There is a tenant called 'Acme' already: tenant_01A, tenant_02B. Choose another.";
  const error = { message, type: "invalid_request_error", param: "name" };
  const taken = new ApiError(409, { error: { ...error, code: "tenant_name_exists" } });
  expect(namesakesIn(taken)).toEqual(["tenant_01A", "tenant_02B"]);
  expect(namesakesIn(new ApiError(409, { error: { ...error, code: "conflict" } }))).toEqual([]);
  expect(namesakesIn(new Error("tenant_01A"))).toEqual([]);
});
