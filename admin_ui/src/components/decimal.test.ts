import { describe, expect, it } from "vitest";
import { sumOf } from "./decimal";

describe("sums of money", () => {
  it("are exact where floats are not", () => {
    expect(sumOf(["0.1", "0.2"])).toBe("0.300000000000");
    expect(sumOf(["99999999999999999999.999999999999", "0.000000000001"])).toBe(
      "100000000000000000000.000000000000",
    );
  });

  it("know less than nothing, and nothing at all", () => {
    expect(sumOf(["1.5", "-2"])).toBe("-0.500000000000");
    expect(sumOf([])).toBe("0.000000000000");
  });

  it("refuse what is no amount", () => {
    expect(() => sumOf(["1e3"])).toThrow("1e3");
  });
});
