import { expect, test } from "vitest";
import { browserOf } from "./model";

test("browsers are called by their names, though each claims to be several", () => {
  const chrome = "(KHTML, like Gecko) Chrome/150.0.0.0 Safari/537.36";
  expect(browserOf(`Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 ${chrome}`)).toBe(
    "Chrome on Linux",
  );
  expect(browserOf(`Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${chrome} Edg/150.0`)).toBe(
    "Edge on Windows",
  );
  const mac = "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_0)";
  expect(browserOf(`${mac} AppleWebKit/605 Version/19 Safari/605`)).toBe("Safari on macOS");
  expect(browserOf("Mozilla/5.0 (Android 16; Mobile; rv:140.0) Gecko Firefox/140.0")).toBe(
    "Firefox on Android",
  );
});

test("what is no browser is shown as it came", () => {
  expect(browserOf("python-httpx/0.28")).toBe("python-httpx/0.28");
  expect(browserOf(null)).toBe("unknown");
});
