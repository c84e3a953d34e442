import { afterEach, expect, it, vi } from "vitest";
import { isUnattended, watchInputs } from "./attention";

afterEach(() => {
  vi.useRealTimers();
});

it("knows a page that nobody has touched for five minutes", () => {
  vi.useFakeTimers();
  const page = new EventTarget();
  watchInputs(page);
  page.dispatchEvent(new Event("keydown"));
  vi.advanceTimersByTime(4 * 60_000);
  expect(isUnattended()).toBe(false);
  vi.advanceTimersByTime(2 * 60_000);
  expect(isUnattended()).toBe(true);
  page.dispatchEvent(new Event("pointerdown"));
  expect(isUnattended()).toBe(false);
});
