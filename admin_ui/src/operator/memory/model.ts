/**
 * The page arena as columns: of every page its kind, owner and age. What the server sends becomes
 * columns here, differences are written over them, and a page is put into words. It draws nothing.
 */

import type { Schemas } from "../../api/client";
import { formatCount } from "../../components/format";

export type EnginePages = Schemas["EnginePages"];
export type Owner = Schemas["PageOwner"];
export type Departure = Schemas["Departure"];
export type Place = Schemas["AdapterPlace"];
export type TenantMemory = Schemas["TenantMemory"];

export const FREE = 0;
export const LIVE = 1;
export const CACHED = 2;
export const ADAPTER = 3;

export const KINDS = [
  { kind: LIVE, name: "live", label: "Live KV" },
  { kind: CACHED, name: "cached", label: "Cached KV" },
  { kind: ADAPTER, name: "adapter", label: "Adapter" },
  { kind: FREE, name: "free", label: "Free" },
] as const;

export const MODES = ["kind", "tenant", "age", "next"] as const;
export type Mode = (typeof MODES)[number];

/** Of every page. `since`: of cached KV the second since which nobody uses it, else 0. */
export interface Arena {
  kinds: Uint8Array;
  owners: Uint32Array;
  since: Float64Array;
  /** What an owner's number stands for; 0 is nobody. */
  table: readonly Owner[];
}

/** Everything the page shows of one moment. */
export interface Snapshot {
  view: EnginePages;
  arena: Arena;
}

/** A difference, as the live stream sends it. */
export interface PagesEvent {
  at: number;
  since: number | null;
  counts?: Schemas["PageCounts"];
  runs?: number[];
  owners?: Owner[];
  departures?: Departure[];
  adapters?: Place[];
  tenants?: TenantMemory[];
  pinned_pages?: number;
  pinnable_pages?: number;
}

/** An event of the name `pages`, or null if it is no such thing. */
export function readPagesEvent(data: unknown): PagesEvent | null {
  if (typeof data !== "object" || data === null || !("at" in data)) return null;
  return typeof data.at === "number" ? (data as PagesEvent) : null;
}

export function snapshotOf(view: EnginePages): Snapshot {
  const total = view.total_pages;
  const kinds = new Uint8Array(total);
  const owners = new Uint32Array(total);
  const since = new Float64Array(total);
  let page = 0;
  for (let at = 0; at + 3 < view.runs.length; at += 4) {
    const end = page + (view.runs[at] ?? 0);
    kinds.fill(view.runs[at + 1] ?? 0, page, end);
    owners.fill(view.runs[at + 2] ?? 0, page, end);
    since.fill(view.runs[at + 3] ?? 0, page, end);
    page = end;
  }
  return { view, arena: { kinds, owners, since, table: view.owners } };
}

/**
 * The snapshot with a difference written over it; the same where it tells nothing new; null where
 * something in between is missing and the whole has to be asked for.
 */
export function followed(before: Snapshot, event: PagesEvent): Snapshot | null {
  if (event.at <= before.view.at) return before;
  if (event.since === null || event.since > before.view.at) return null;
  const table = [...before.arena.table];
  const numbers = (event.owners ?? []).map((owner) => numberOf(table, owner));
  const arena: Arena = {
    kinds: before.arena.kinds.slice(),
    owners: before.arena.owners.slice(),
    since: before.arena.since.slice(),
    table,
  };
  const runs = event.runs ?? [];
  for (let at = 0; at + 4 < runs.length; at += 5) {
    const first = runs[at] ?? 0;
    const end = first + (runs[at + 1] ?? 0);
    arena.kinds.fill(runs[at + 2] ?? 0, first, end);
    arena.owners.fill(numbers[runs[at + 3] ?? 0] ?? 0, first, end);
    arena.since.fill(runs[at + 4] ?? 0, first, end);
  }
  const { view } = before;
  return {
    arena,
    view: {
      ...view,
      at: event.at,
      counts: event.counts ?? view.counts,
      departures: event.departures ?? view.departures,
      adapters: event.adapters ?? view.adapters,
      tenants: event.tenants ?? view.tenants,
      pinned_pages: event.pinned_pages ?? view.pinned_pages,
      pinnable_pages: event.pinnable_pages ?? view.pinnable_pages,
    },
  };
}

function numberOf(table: Owner[], owner: Owner): number {
  const found = table.findIndex(
    (each) => each.namespace === owner.namespace && each.digest === owner.digest,
  );
  return found >= 0 ? found : table.push(owner) - 1;
}

/** A run of neighbours that are alike. */
export interface Run {
  first: number;
  count: number;
  kind: number;
  owner: number;
  since: number;
}

export function runsOf({ kinds, owners, since }: Arena): Run[] {
  const runs: Run[] = [];
  for (let page = 0; page < kinds.length; page += 1) {
    const last = runs.at(-1);
    const kind = kinds[page] ?? 0;
    const owner = owners[page] ?? 0;
    const second = since[page] ?? 0;
    if (last && last.kind === kind && last.owner === owner && last.since === second)
      last.count += 1;
    else runs.push({ first: page, count: 1, kind, owner, since: second });
  }
  return runs;
}

/** The place of every page among those that go next, 0 for the others. */
export function ordersOf(total: number, departures: readonly Departure[]): Uint8Array {
  const orders = new Uint8Array(total);
  for (const { order, pages } of departures)
    for (const page of pages) if (orders[page] === 0) orders[page] = order;
  return orders;
}

/** Who is meant by an owner or a row, across renames: the tenant, else its namespace. */
export function keyOf(owner: { tenant_id: string | null; namespace: string }): string {
  return owner.tenant_id ?? owner.namespace;
}

export const AGES = [
  { least: 0, label: "under 10 s" },
  { least: 10, label: "under 1 min" },
  { least: 60, label: "under 10 min" },
  { least: 600, label: "under 1 h" },
  { least: 3600, label: "1 h and more" },
] as const;

/** Which of AGES so many idle seconds are. */
export function ageOf(idleS: number): number {
  let age = 0;
  AGES.forEach(({ least }, index) => {
    if (idleS >= least) age = index;
  });
  return age;
}

export function spanOf(seconds: number): string {
  const rounded = Math.max(0, Math.round(seconds));
  if (rounded < 120) return `${rounded} s`;
  if (rounded < 7200) return `${Math.round(rounded / 60)} min`;
  return `${Math.round(rounded / 3600)} h`;
}

export function tenantLabel(owner: { tenant: string | null; namespace: string }): string {
  return (
    owner.tenant ?? (owner.namespace ? `unknown tenant ${owner.namespace.slice(0, 8)}` : "nobody")
  );
}

/** "cached KV of Acme, support@2, idle for 41 s" */
export function described(run: Omit<Run, "first" | "count">, arena: Arena, atS: number): string {
  if (run.kind === FREE) return "free";
  const owner = arena.table[run.owner];
  const who = owner ? tenantLabel(owner) : "nobody";
  if (run.kind === ADAPTER) return `adapter ${owner?.adapter ?? "(deleted)"}, loaded for ${who}`;
  const on = owner?.adapter ?? "the base model";
  if (run.kind === LIVE) return `live KV of ${who}, ${on}, in use`;
  return `cached KV of ${who}, ${on}, idle for ${spanOf(atS - run.since)}`;
}

export function pageText(page: number, { arena, view }: Snapshot, orders: Uint8Array): string {
  const run = {
    kind: arena.kinds[page] ?? 0,
    owner: arena.owners[page] ?? 0,
    since: arena.since[page] ?? 0,
  };
  const order = orders[page] ?? 0;
  const next = order > 0 ? `; number ${order} in the eviction order` : "";
  return `Page ${formatCount(page)}: ${described(run, arena, view.at)}${next}`;
}

/** How the arena lies on the canvas. Above JOINED_FROM pages runs are bars, not cells. */
export interface Grid {
  columns: number;
  rows: number;
  /** Pixels from one page to the next; no whole number where runs are joined. */
  cell: number;
  height: number;
  gap: number;
  isJoined: boolean;
}

export const JOINED_FROM = 4000;
const HEIGHT_MAX = 560;
const CELL_MAX = 22;
const CELL_MIN = 9;

export function layout(pages: number, width: number): Grid {
  const usable = Math.max(width, 120);
  if (pages <= JOINED_FROM) {
    let side = CELL_MAX;
    while (side > CELL_MIN && Math.ceil(pages / Math.floor(usable / side)) * side > HEIGHT_MAX)
      side -= 1;
    const columns = Math.max(1, Math.floor(usable / side));
    const rows = Math.ceil(pages / columns);
    const gap = side >= 14 ? 2 : 1;
    return { columns, rows, cell: side, height: side, gap, isJoined: false };
  }
  const columns = Math.max(64, Math.ceil(Math.sqrt((pages * usable) / (HEIGHT_MAX * 1.5))));
  const rows = Math.ceil(pages / columns);
  const height = Math.max(3, Math.floor(HEIGHT_MAX / rows));
  return { columns, rows, cell: usable / columns, height, gap: 1, isJoined: true };
}

export function pageAt(grid: Grid, pages: number, x: number, y: number): number | null {
  const column = Math.floor(x / grid.cell);
  const row = Math.floor(y / grid.height);
  if (column < 0 || row < 0 || column >= grid.columns) return null;
  const page = row * grid.columns + column;
  return page < pages ? page : null;
}

/** Where a key leads from a page; null for other keys. Joined runs are passed over at once. */
export function moved(key: string, from: number, grid: Grid, arena: Arena): number | null {
  const last = arena.kinds.length - 1;
  const within = (page: number) => Math.min(Math.max(page, 0), last);
  switch (key) {
    case "ArrowRight":
      return grid.isJoined ? nextRun(arena, from, 1) : within(from + 1);
    case "ArrowLeft":
      return grid.isJoined ? nextRun(arena, from, -1) : within(from - 1);
    case "ArrowDown":
      return from + grid.columns > last ? from : from + grid.columns;
    case "ArrowUp":
      return from - grid.columns < 0 ? from : from - grid.columns;
    case "PageDown":
      return within(from + 10 * grid.columns);
    case "PageUp":
      return within(from - 10 * grid.columns);
    case "Home":
      return 0;
    case "End":
      return last;
    default:
      return null;
  }
}

function nextRun({ kinds, owners, since }: Arena, from: number, step: 1 | -1): number {
  const isAlike = (page: number) =>
    kinds[page] === kinds[from] && owners[page] === owners[from] && since[page] === since[from];
  let page = from;
  while (page + step >= 0 && page + step < kinds.length) {
    page += step;
    if (!isAlike(page)) return page;
  }
  return page;
}

/** What the map says to who cannot see it. */
export function summary({ view }: Snapshot): string {
  const { live_kv, cached_kv, adapter, free } = view.counts;
  return (
    `Page arena: ${formatCount(live_kv)} live KV, ${formatCount(cached_kv)} cached KV, ` +
    `${formatCount(adapter)} adapter, ${formatCount(free)} free of ${formatCount(view.total_pages)} pages`
  );
}

/** Those with the most, at most so many, in an order that does not jump as they change. */
export function sortedShares(tenants: readonly TenantMemory[], most: number): TenantMemory[] {
  return [...tenants]
    .sort((a, b) => heldBy(b) - heldBy(a))
    .slice(0, most)
    .sort((a, b) => keyOf(a).localeCompare(keyOf(b)));
}

export function heldBy({ live_kv, cached_kv, adapter }: TenantMemory): number {
  return live_kv + cached_kv + adapter;
}
