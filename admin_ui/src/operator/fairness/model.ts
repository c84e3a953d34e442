/** Waits as a matrix, what stands out of it in words, and the gap as a series. Pure functions. */

import type { Schemas } from "../../api/client";
import { formatPart } from "../../components/format";

export type Wait = Schemas["WaitView"];
export type ClassFairness = Schemas["ClassFairness"];
type Share = Schemas["ShareView"];

/** As many tenants have columns of their own; the others' seconds are summed in one. */
const COLUMNS_MAX = 12;
const REST = "other tenants";

export interface Column {
  key: string;
  /** As the head of the column. */
  label: string;
  /** As the end of "acme waited 4 s ...". */
  because: string;
}

export interface Cell {
  seconds: number;
  sequences: number;
}

export interface Row {
  tenantId: string;
  name: string;
  cells: ReadonlyMap<string, Cell>;
  total: Cell;
}

export interface Matrix {
  columns: Column[];
  rows: Row[];
  /** Of any cell. */
  most: number;
}

/** What is no other tenant's doing, in the order in which it is shown, last. */
const OWN: readonly Column[] = [
  { key: "own", label: "Own requests", because: "behind its own requests" },
  { key: "load", label: "Adapter load", because: "for its own adapter to be loaded" },
  {
    key: "pages",
    label: "Memory in use",
    because: "for memory that cannot be attributed to one tenant",
  },
  { key: "start", label: "Scheduling", because: "for the step in progress to finish" },
  {
    key: "preempted",
    label: "Preempted for own requests",
    because: "after being preempted for its own requests",
  },
];

function columnOf(wait: Wait, isNamed: (other: string) => boolean): Column {
  const cause = wait.cause ?? "start";
  if (wait.other_id === null) {
    return OWN.find(({ key }) => key === cause) ?? { key: cause, label: cause, because: cause };
  }
  const named = isNamed(wait.other_id);
  const id = named ? wait.other_id : REST;
  const name = named ? (wait.other_name ?? wait.other_id) : REST;
  const whose = named ? `${name}'s` : `${name}'`;
  if (cause === "pages") {
    return { key: `pages ${id}`, label: `${whose} pages`, because: `for pages held by ${name}` };
  }
  if (cause === "preempted") {
    return {
      key: `preempted ${id}`,
      label: `Preempted for ${name}`,
      because: `after being preempted for ${name}`,
    };
  }
  return { key: `queue ${id}`, label: `${whose} queue`, because: `behind ${whose} queue` };
}

/** Rows and columns by seconds, most first; what is nobody else's doing comes last. */
export function matrixOf(waits: readonly Wait[]): Matrix {
  const byOther = new Map<string, number>();
  for (const { other_id, seconds } of waits) {
    if (other_id !== null) byOther.set(other_id, (byOther.get(other_id) ?? 0) + seconds);
  }
  const named = new Set(
    [...byOther]
      .sort(([, a], [, b]) => b - a)
      .slice(0, COLUMNS_MAX)
      .map(([id]) => id),
  );
  const columns = new Map<string, { column: Column; seconds: number }>();
  const rows = new Map<string, Row & { cells: Map<string, Cell> }>();
  for (const wait of waits) {
    const column = columnOf(wait, (id) => named.has(id));
    const known = columns.get(column.key);
    columns.set(column.key, { column, seconds: (known?.seconds ?? 0) + wait.seconds });
    const tenantId = wait.tenant_id ?? "";
    const row = rows.get(tenantId) ?? {
      tenantId,
      name: wait.tenant_name ?? tenantId,
      cells: new Map<string, Cell>(),
      total: { seconds: 0, sequences: 0 },
    };
    rows.set(tenantId, row);
    row.cells.set(column.key, plus(row.cells.get(column.key), wait));
    row.total = plus(row.total, wait);
  }
  const own = (key: string) => OWN.findIndex((each) => each.key === key);
  const sorted = [...columns.values()].sort(
    (a, b) => own(a.column.key) - own(b.column.key) || b.seconds - a.seconds,
  );
  const all = [...rows.values()].sort((a, b) => b.total.seconds - a.total.seconds);
  const seconds = all.flatMap(({ cells }) => [...cells.values()].map((cell) => cell.seconds));
  return {
    columns: sorted.map(({ column }) => column),
    rows: all,
    most: Math.max(0, ...seconds),
  };
}

function plus(cell: Cell | undefined, wait: Cell): Cell {
  return {
    seconds: (cell?.seconds ?? 0) + wait.seconds,
    sequences: (cell?.sequences ?? 0) + wait.sequences,
  };
}

/** 1 to 5 by its part of the most; its square root, so that small ones are told apart. */
export function shadeOf(seconds: number, most: number): number {
  if (seconds <= 0 || most <= 0) return 0;
  return Math.max(1, Math.ceil(Math.sqrt(seconds / most) * 5));
}

export function formatSeconds(seconds: number): string {
  if (seconds > 0 && seconds < 0.0005) return "< 1 ms";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 119.5) return `${Math.round(seconds)} s`;
  if (seconds < 7170) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export interface Nearest {
  class: string;
  part: number;
}

/** The class whose gap came nearest to its bound, and by which part of it. */
export function nearestGap(classes: readonly ClassFairness[]): Nearest | null {
  let nearest: Nearest | null = null;
  for (const each of classes) {
    for (const { gap_tokens, bound_tokens } of each.gaps) {
      const part = gap_tokens / bound_tokens;
      if (nearest === null || part > nearest.part) nearest = { class: each.class, part };
    }
  }
  return nearest;
}

/** Below a second nothing stands out. */
const WORTH_S = 1;

/** What an operator would say who has looked at the page. */
export function sentenceOf(waits: readonly Wait[], classes: readonly ClassFairness[]): string {
  const total = waits.reduce((sum, { seconds }) => sum + seconds, 0);
  if (total === 0) return "No request waited in this period.";
  if (total < WORTH_S) return `Requests hardly waited: ${formatSeconds(total)} in total.`;
  const matrix = matrixOf(waits);
  let found: { row: Row; column: Column; cell: Cell } | null = null;
  for (const row of matrix.rows) {
    for (const column of matrix.columns) {
      const cell = row.cells.get(column.key);
      const isOthers = column.key.includes(" ");
      if (cell && isOthers && cell.seconds > (found?.cell.seconds ?? 0)) {
        found = { row, column, cell };
      }
    }
  }
  const of = `out of ${formatSeconds(total)} total wait time`;
  if (found === null || found.cell.seconds < WORTH_S) {
    const row = matrix.rows[0];
    const column = matrix.columns.reduce((a, b) => (secondsOf(row, b) > secondsOf(row, a) ? b : a));
    return `No tenant waited noticeably for another tenant. ${row?.name} waited ${formatSeconds(
      secondsOf(row, column),
    )} ${column.because}, ${of}.`;
  }
  const { row, column, cell } = found;
  const requests = cell.sequences === 1 ? "in one sequence" : `in ${cell.sequences} sequences`;
  const first = `${row.name} waited ${formatSeconds(cell.seconds)} ${column.because} ${requests}, ${of}.`;
  return [first, shareSentence(row.tenantId, classes), gapSentence(classes)].join(" ").trim();
}

function secondsOf(row: Row | undefined, column: Column): number {
  return row?.cells.get(column.key)?.seconds ?? 0;
}

function shareSentence(tenantId: string, classes: readonly ClassFairness[]): string {
  let most: { share: Share; class: string } | null = null;
  for (const each of classes) {
    for (const share of each.tenants) {
      const isIt = share.tenant_id === tenantId;
      if (isIt && share.waited_s > (most?.share.waited_s ?? 0)) most = { share, class: each.class };
    }
  }
  if (most === null || most.share.weight_share === null) return "";
  const { service_share, weight_share } = most.share;
  return `It received ${formatPart(service_share)} of the service in class ${most.class} and is entitled to ${formatPart(
    weight_share,
  )} by weight.`;
}

function gapSentence(classes: readonly ClassFairness[]): string {
  const nearest = nearestGap(classes);
  if (nearest === null) return "";
  if (nearest.part === 0)
    return "No two tenants waited at the same time, so there was no service gap.";
  if (nearest.part < 1) {
    return `Scheduling was fair: the service gap reached at most ${formatPart(
      nearest.part,
    )} of its proven bound.`;
  }
  return `In class ${nearest.class} the service gap exceeded its bound: a tenant had no request that could start. Check the waits for memory and adapter loads below.`;
}

export interface GapSeries {
  times: number[];
  gap: (number | null)[];
  bound: (number | null)[];
}

/** The server's parts of a range, in seconds: 300 of them at most, of whole minutes. */
const widthOf = (startS: number, endS: number) =>
  Math.max(60, Math.ceil((endS - startS) / 18_000) * 60);

/** Over the whole range; each point for the part it is of, nothing where nobody waited. */
export function gapSeries(gaps: ClassFairness["gaps"], startS: number, endS: number): GapSeries {
  const series: GapSeries = { times: [], gap: [], bound: [] };
  const width = widthOf(startS, endS);
  const add = (time: number, gap: number | null, bound: number | null) => {
    if (time < startS || time > endS || time <= (series.times.at(-1) ?? -1)) return;
    series.times.push(time);
    series.gap.push(gap);
    series.bound.push(bound);
  };
  add(startS, null, null);
  gaps.forEach(({ at, gap_tokens, bound_tokens }, index) => {
    const time = Date.parse(at) / 1000;
    add(time === startS ? time + 1 : time, gap_tokens, bound_tokens);
    const next = gaps[index + 1];
    if (next === undefined || Date.parse(next.at) / 1000 > time + 1.5 * width) {
      add(time + width - 2, gap_tokens, bound_tokens);
      add(time + width - 1, null, null);
    }
  });
  add(endS, null, null);
  return series;
}

/** Where the requests of a tenant are, those that waited longest first; null of what is no tenant. */
export function requestsOf(tenantId: string, startS: number, endS: number): string | null {
  if (tenantId === "" || tenantId === "other") return null;
  const query = new URLSearchParams({
    tenant: tenantId,
    start: String(startS),
    end: String(endS),
    sort: "-queue",
  });
  return `/operator/requests?${query}`;
}
