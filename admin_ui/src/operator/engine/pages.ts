/** What the characters of a page map mean, and how the map is laid out on a canvas. */

import type { Schemas } from "../../api/client";

export type PageKind = "free" | "live" | "cached" | "adapter";

export const KINDS: Array<{ kind: PageKind; code: string; label: string; color: string }> = [
  { kind: "live", code: "L", label: "Live KV", color: "--mantine-color-teal-6" },
  { kind: "cached", code: "C", label: "Cached KV", color: "--mantine-color-teal-3" },
  { kind: "adapter", code: "A", label: "Adapters", color: "--mantine-color-violet-4" },
  { kind: "free", code: ".", label: "Free", color: "--pool-free" },
];

export function pagesOf(pool: Schemas["PoolView"], kind: PageKind): number {
  const counts: Record<PageKind, number> = {
    free: pool.free_pages,
    live: pool.live_kv_pages,
    cached: pool.cached_kv_pages,
    adapter: pool.adapter_pages,
  };
  return counts[kind];
}

const BY_CODE = new Map(KINDS.map((entry) => [entry.code, entry]));

export function kindOf(code: string) {
  return BY_CODE.get(code);
}

export interface Grid {
  columns: number;
  rows: number;
  cell: number; // px, the gap included
  gap: number; // px
}

const CELL_MAX = 16;
const CELL_MIN = 3;
const HEIGHT_MAX = 420;

/** The largest cells with which `pages` fit into `width` without growing too tall. */
export function layoutGrid(pages: number, width: number): Grid {
  for (let cell = CELL_MAX; ; cell -= 1) {
    const columns = Math.max(1, Math.floor(width / cell));
    const rows = Math.ceil(pages / columns);
    if (rows * cell <= HEIGHT_MAX || cell === CELL_MIN)
      return { columns, rows, cell, gap: cell >= 10 ? 2 : cell >= 5 ? 1 : 0 };
  }
}

/** The page under a point of the canvas, or null beside the grid. */
export function pageAt(grid: Grid, pages: number, x: number, y: number): number | null {
  const column = Math.floor(x / grid.cell);
  const row = Math.floor(y / grid.cell);
  if (column < 0 || row < 0 || column >= grid.columns) return null;
  const page = row * grid.columns + column;
  return page < pages ? page : null;
}
