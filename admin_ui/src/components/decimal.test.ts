import { describe, expect, it, test } from "vitest";
import { compare, difference, differences, isDecimal, isZero, partOf, sumOf } from "./decimal";

test("sums and differences are exact where floats are not", () => {
  expect(sumOf(["0.1", "0.2"])).toBe("0.300000000000");
  expect(sumOf(["9007199254740993.000000000001", "0.000000000001"])).toBe(
    "9007199254740993.000000000002",
  );
  expect(difference("0.30", "0.1")).toBe("-0.200000000000");
  expect(sumOf([])).toBe("0.000000000000");
});

test("amounts are compared by value, not by how they are written", () => {
  expect(compare("1.50", "1.5")).toBe(0);
  expect(compare("-2", "1")).toBe(-1);
  expect(compare("10", "9.999999999999")).toBe(1);
  expect(isZero("-0.000000000000")).toBe(true);
});

test("what is no decimal of the server's is refused", () => {
  for (const text of ["", "1e5", "1,000", ".5", "1.", "NaN"]) expect(isDecimal(text)).toBe(false);
  expect(isDecimal("0.0000000000010000")).toBe(true);
  expect(() => sumOf(["x"])).toThrow(RangeError);
});

test("a part of a whole", () => {
  expect(partOf("12.5", "50")).toBe(0.25);
  expect(partOf("1", "0")).toBeNull();
});

test("currencies are never added to each other", () => {
  expect(differences({ USD: "1", EUR: "2" }, { USD: "3", CHF: "1" })).toEqual({
    CHF: "1.000000000000",
    EUR: "-2.000000000000",
    USD: "2.000000000000",
  });
});

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
