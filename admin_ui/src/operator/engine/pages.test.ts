import { describe, expect, it } from "vitest";
import { kindOf, layoutGrid, pageAt } from "./pages";

describe("layoutGrid", () => {
  it.each([
    [0, 800],
    [1, 800],
    [640, 800],
    [5000, 1100],
    [200_000, 320],
  ])("has room for %i pages in %i px", (pages, width) => {
    const grid = layoutGrid(pages, width);
    expect(grid.columns * grid.rows).toBeGreaterThanOrEqual(pages);
    expect(grid.columns * grid.cell).toBeLessThanOrEqual(Math.max(width, grid.cell));
  });

  it("draws few pages large and many small", () => {
    expect(layoutGrid(100, 800).cell).toBeGreaterThan(layoutGrid(20_000, 800).cell);
  });
});

describe("pageAt", () => {
  it("finds each page by the middle of its cell, and nothing beside the grid", () => {
    const pages = 37;
    const grid = layoutGrid(pages, 160);
    for (let page = 0; page < pages; page += 1) {
      const x = (page % grid.columns) * grid.cell + grid.cell / 2;
      const y = Math.floor(page / grid.columns) * grid.cell + grid.cell / 2;
      expect(pageAt(grid, pages, x, y)).toBe(page);
    }
    expect(pageAt(grid, pages, -1, 0)).toBeNull();
    expect(pageAt(grid, pages, grid.columns * grid.cell + 1, 0)).toBeNull();
    expect(pageAt(grid, pages, 0, grid.rows * grid.cell + 1)).toBeNull();
  });
});

it("knows the four kinds the engine names", () => {
  expect([..."LCA."].map((code) => kindOf(code)?.kind)).toEqual([
    "live",
    "cached",
    "adapter",
    "free",
  ]);
  expect(kindOf("x")).toBeUndefined();
});
