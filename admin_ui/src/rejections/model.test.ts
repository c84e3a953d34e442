import { expect, test } from "vitest";
import { queryOf, type RejectedCall, rejectedOf, togetherOf } from "./model";

test("an address asks for what it says, and for nothing that it says wrong", () => {
  const asked = (text: string) => queryOf(new URLSearchParams(text), 10_000);
  expect(asked("status=429&q=%20x%20")).toMatchObject({ status: "429", q: "x" });
  expect(asked("status=4xx").status).toBe("4xx");
  expect(asked("status=200").status).toBeUndefined();
  expect(asked("range=1h").start).toBe("1970-01-01T01:46:40.000Z");
  expect(asked("start=60&end=120")).toMatchObject({
    start: "1970-01-01T00:01:00.000Z",
    end: "1970-01-01T00:02:00.000Z",
  });
  expect(asked("start=120&end=60").start).toBeUndefined();
});

test("a place of a chart is an address", () => {
  expect(rejectedOf("/rejected", { startS: 60.5, endS: 119.5 })).toBe("/rejected?start=60&end=120");
  expect(rejectedOf("/operator/rejected", { range: "1h", status: "503", tenant: "t" })).toBe(
    "/operator/rejected?range=1h&status=503&tenant=t",
  );
});

test("what stands for several says so", () => {
  const call = { calls: 1, last_at: null } as RejectedCall;
  expect(togetherOf(call)).toBeNull();
  expect(togetherOf({ ...call, calls: 1200, last_at: "2026-11-26T08:00:00Z" })).toMatch(
    /^1,200 calls until 26 Nov 2026/,
  );
});
