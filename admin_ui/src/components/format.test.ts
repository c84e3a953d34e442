import { describe, expect, it } from "vitest";
import {
  formatAgo,
  formatAmount,
  formatBytes,
  formatClock,
  formatDate,
  formatDay,
  formatMoney,
  formatMs,
  formatNorm,
  formatPart,
  shortDigest,
  zoneName,
} from "./format";

describe("formatMoney", () => {
  it.each([
    ["0", "$0.00"],
    ["0.000000000000", "$0.00"],
    ["1234567.890000", "$1,234,567.89"],
    ["0.000012300000", "$0.0000123"],
    ["-1000.5", "-$1,000.50"],
    ["123456789012345678901234.123456789012", "$123,456,789,012,345,678,901,234.123456789012"],
    ["0.1", "$0.10"],
  ])("writes %s as %s", (amount, expected) => {
    expect(formatMoney(amount, "USD")).toBe(expected);
  });

  it("names a currency without a symbol of its own", () => {
    expect(formatMoney("12.5", "chf")).toBe("12.50 CHF");
  });

  it("writes an amount of no currency", () => {
    expect(formatAmount("1234.5")).toBe("1,234.50");
    expect(formatAmount("0.004")).toBe("0.004");
  });

  it("shows what it cannot read as it came", () => {
    expect(formatMoney("1E-7", "USD")).toBe("1E-7 USD");
  });
});

describe("times", () => {
  it("name the zone that they are told in", () => {
    const zone = zoneName();
    expect(zone).not.toBe("");
    expect(formatDate("2026-11-26T08:14:00Z").endsWith(` ${zone}`)).toBe(true);
    expect(formatDate(1_795_680_840)).toBe(formatDate("2026-11-26T08:14:00Z"));
    expect(formatClock(1_795_680_840)).toMatch(/^\d\d:\d\d:00 /);
  });
});

describe("the other formatters", () => {
  it("writes sizes in binary units", () => {
    expect(formatBytes(0)).toBe("0 B");
    expect(formatBytes(1023)).toBe("1023 B");
    expect(formatBytes(1536)).toBe("1.5 KiB");
    expect(formatBytes(300 * 1024 ** 2)).toBe("300 MiB");
  });

  it("writes times with the places they deserve", () => {
    expect(formatMs(0.234)).toBe("0.23 ms");
    expect(formatMs(7.25)).toBe("7.3 ms");
    expect(formatMs(340.4)).toBe("340 ms");
    expect(formatMs(1234)).toBe("1.23 s");
  });

  it("writes norms with four digits", () => {
    expect(formatNorm(6.868535150166051)).toBe("6.869");
    expect(formatNorm(0)).toBe("0");
  });

  it("writes parts so that only all of them is 100%", () => {
    expect(formatPart(1)).toBe("100%");
    expect(formatPart(0.99999)).toBe("99.9%");
    expect(formatPart(0.5)).toBe("50.0%");
    expect(formatPart(0)).toBe("0.0%");
    expect(formatPart(null)).toBe("–");
  });

  it("shortens digests with and without the algorithm", () => {
    expect(shortDigest("sha256:0123456789abcdef")).toBe("0123456789ab");
    expect(shortDigest("0123456789abcdef", 4)).toBe("0123");
  });

  it("says how long ago", () => {
    expect(formatAgo(100, 142)).toBe("42 s ago");
    expect(formatAgo(100, 99)).toBe("0 s ago");
    expect(formatAgo(0, 7300)).toBe("2 h ago");
  });
});

describe("a UTC day", () => {
  it("is told by its date alone, wherever the browser is", () => {
    expect(formatDay(Date.UTC(2026, 10, 1) / 1000)).toBe("1 Nov 2026");
    expect(formatDay("2026-11-01T23:59:59Z")).toBe("1 Nov 2026");
  });
});
