import { expect, test } from "vitest";
import { GREY, HUES, hueOf, tenantColor } from "./tenantColor";

test("a tenant has one colour, whoever else there is", () => {
  const ids = Array.from({ length: 200 }, (_, index) => `tenant_${index}`);
  const hues = ids.map(hueOf);
  expect(ids.map(hueOf)).toEqual(hues);
  expect(new Set(hues).size).toBe(HUES);
  expect(Math.max(...hues)).toBe(HUES - 1);
  expect(tenantColor("tenant_1")).toBe(`var(--tenora-hue-${hueOf("tenant_1")})`);
  expect(tenantColor(null)).toBe(`var(--tenora-hue-${GREY})`);
});
