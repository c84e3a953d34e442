import { expect, test } from "vitest";
import {
  ADAPTER,
  type Arena,
  ageOf,
  CACHED,
  type EnginePages,
  FREE,
  followed,
  JOINED_FROM,
  LIVE,
  layout,
  moved,
  type Owner,
  ordersOf,
  pageAt,
  pageText,
  runsOf,
  type Snapshot,
  snapshotOf,
  summary,
} from "./model";

const owner = (namespace: string, adapter: string | null = null): Owner => ({
  namespace,
  tenant_id: namespace && `tenant_${namespace}`,
  tenant: namespace ? namespace.toUpperCase() : null,
  adapter,
  digest: adapter && `sha256:${adapter}`,
});

function view(runs: number[], owners: Owner[], at = 1000): EnginePages {
  const counts = { free: 0, live_kv: 0, cached_kv: 0, adapter: 0 };
  const names = ["free", "live_kv", "cached_kv", "adapter"] as const;
  let total = 0;
  for (let index = 0; index < runs.length; index += 4) {
    const name = names[runs[index + 1] ?? 0] ?? "free";
    counts[name] += runs[index] ?? 0;
    total += runs[index] ?? 0;
  }
  return {
    object: "engine.pages",
    at,
    policy: "joint",
    total_pages: total,
    page_bytes: 1024,
    counts,
    runs,
    owners,
    tenants: [],
    departures: [],
    departures_for: null,
    adapters: [],
    slots: 4,
    pinned_pages: 0,
    pinnable_pages: 2,
  };
}

const OWNERS = [owner(""), owner("a"), owner("b", "json@1")];
const RUNS = [2, LIVE, 1, 0, 3, CACHED, 2, 940, 2, ADAPTER, 2, 0, 3, FREE, 0, 0];
const base = (): Snapshot => snapshotOf(view(RUNS, OWNERS));

const flat = ({ kinds, owners, since, table }: Arena) =>
  [...kinds].map((kind, page) => [kind, table[owners[page] ?? 0]?.namespace, since[page]]);

test("runs become pages, and pages runs again", () => {
  const { arena } = base();
  expect([...arena.kinds]).toEqual([1, 1, 2, 2, 2, 3, 3, 0, 0, 0]);
  const again = runsOf(arena).flatMap(({ count, kind, owner, since }) => [
    count,
    kind,
    owner,
    since,
  ]);
  expect(again).toEqual(RUNS);
});

test("a difference is written over what was there, whatever its owners are called in it", () => {
  const before = base();
  const after = followed(before, {
    at: 1002,
    since: 999,
    runs: [1, 2, LIVE, 1, 0, 8, 1, CACHED, 0, 1001],
    owners: [owner("c"), owner("b", "json@1")],
    counts: { free: 2, live_kv: 3, cached_kv: 3, adapter: 2 },
  });
  expect(after && flat(after.arena)).toEqual([
    [LIVE, "a", 0],
    [LIVE, "b", 0],
    [LIVE, "b", 0],
    [CACHED, "b", 940],
    [CACHED, "b", 940],
    [ADAPTER, "b", 0],
    [ADAPTER, "b", 0],
    [FREE, "", 0],
    [CACHED, "c", 1001],
    [FREE, "", 0],
  ]);
  expect(after?.view.counts.free).toBe(2);
  expect(flat(before.arena)[1]).toEqual([LIVE, "a", 0]);
});

test("an old difference changes nothing, and a gap asks for the whole", () => {
  const before = base();
  expect(followed(before, { at: 1000, since: 998 })).toBe(before);
  expect(followed(before, { at: 1004, since: 1002 })).toBeNull();
  expect(followed(before, { at: 1004, since: null })).toBeNull();
});

test("a page is put into words", () => {
  const snapshot = base();
  const orders = ordersOf(10, [
    {
      order: 1,
      kind: "cached_kv",
      tenant_id: "tenant_b",
      tenant: "B",
      adapter: "json@1",
      pages: [4, 3],
      again_ms: 1,
      again_by: "compute",
      again_ms_per_mib: 1,
      last_used_at: 940,
      visits: 1,
      wanted: false,
      taken_by: "anyone",
      reason: "",
    },
  ]);
  const texts = [0, 2, 4, 6, 9].map((page) => pageText(page, snapshot, orders));
  expect(texts).toEqual([
    "Page 0: live KV of A, the base model, in use",
    "Page 2: cached KV of B, json@1, idle for 60 s",
    "Page 4: cached KV of B, json@1, idle for 60 s; number 1 in the eviction order",
    "Page 6: adapter json@1, loaded for B",
    "Page 9: free",
  ]);
  expect(summary(snapshot)).toBe(
    "Page arena: 2 live KV, 3 cached KV, 2 adapter, 3 free of 10 pages",
  );
});

test("cells fit the width, and above four thousand pages runs are joined", () => {
  const small = layout(600, 700);
  expect(small.isJoined).toBe(false);
  expect(small.columns * small.cell).toBeLessThanOrEqual(700);
  expect(small.rows * small.columns).toBeGreaterThanOrEqual(600);
  const large = layout(65_536, 700);
  expect(large.isJoined).toBe(true);
  expect(large.rows * large.columns).toBeGreaterThanOrEqual(65_536);
  expect(large.rows * large.height).toBeLessThan(900);
  expect(layout(JOINED_FROM, 700).isJoined).toBe(false);
  expect(pageAt(small, 600, small.cell * 1.5, small.height * 2.5)).toBe(2 * small.columns + 1);
  expect(pageAt(small, 600, -1, 0)).toBeNull();
});

test("arrow keys move by pages, and by runs where those are joined", () => {
  const { arena } = base();
  const cells = { columns: 4, rows: 3, cell: 20, height: 20, gap: 2, isJoined: false };
  const walk = (key: string, from: number) => moved(key, from, cells, arena);
  expect([walk("ArrowRight", 3), walk("ArrowLeft", 0), walk("ArrowDown", 1)]).toEqual([4, 0, 5]);
  expect([walk("ArrowUp", 1), walk("End", 1), walk("ArrowDown", 8)]).toEqual([1, 9, 8]);
  expect(walk("a", 1)).toBeNull();
  const joined = { ...cells, isJoined: true };
  expect(moved("ArrowRight", 2, joined, arena)).toBe(5);
  expect(moved("ArrowLeft", 5, joined, arena)).toBe(4);
});

test("ages are classes", () => {
  expect([0, 9, 10, 59, 60, 600, 3600, 1e6].map(ageOf)).toEqual([0, 0, 1, 1, 2, 3, 4, 4]);
});
