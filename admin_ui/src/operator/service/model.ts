/** What the Service page makes of attainment by tenant and class: lanes of cells, and their table. */

import type { Schemas } from "../../api/client";
import { slowestOf } from "../now/incidents";

export type Answer = Schemas["TimeSeriesAnswer"];
export type Line = Schemas["TimeSeries"];
export type Promise_ = "ttft_attainment" | "tpot_attainment";

/** Cells that one lane shows at most: more could not be told apart, nor reached by arrow keys. */
export const CELLS_MAX = 120;
const STEPS = [
  ["1m", 60],
  ["5m", 300],
  ["15m", 900],
  ["1h", 3_600],
  ["3h", 10_800],
  ["6h", 21_600],
  ["12h", 43_200],
  ["1d", 86_400],
] as const;

/** The shortest step that a range's cells may have. */
export function stepOf(startS: number, endS: number): string {
  const fits = STEPS.find(([, seconds]) => (endS - startS) / seconds <= CELLS_MAX);
  return fits?.[0] ?? "1d";
}

export type Grade = "met" | "near" | "close" | "missed" | "none" | "unknown";

export interface Cell {
  startS: number;
  endS: number;
  met: number;
  promised: number;
  grade: Grade;
}

export interface Lane {
  key: string;
  tenantId: string | null;
  name: string;
  serviceClass: string;
  targetMs: number | null;
  met: number;
  promised: number;
  cells: Cell[];
}

/** none: nothing was promised; unknown: nobody looked, so a promise may have been kept or not. */
export function gradeOf(met: number, promised: number): Grade {
  if (promised === 0) return "none";
  const part = met / promised;
  if (part === 1) return "met";
  if (part >= 0.99) return "near";
  return part >= 0.9 ? "close" : "missed";
}

export const GRADES: readonly { grade: Grade; label: string; color: string }[] = [
  { grade: "met", label: "all met", color: "var(--tenora-met)" },
  { grade: "near", label: "99% or more met", color: "var(--tenora-near)" },
  { grade: "close", label: "90% or more met", color: "var(--tenora-close)" },
  { grade: "missed", label: "less than 90% met", color: "var(--tenora-missed)" },
  { grade: "none", label: "no requests with a target", color: "var(--tenora-nothing)" },
];

export function colorOf(grade: Grade): string {
  return GRADES.find((each) => each.grade === grade)?.color ?? "transparent";
}

const sum = (values: readonly number[]) => values.reduce((all, value) => all + value, 0);

/** One lane for each tenant and class that was promised something, who missed most first. */
export function lanesOf(answer: Answer | undefined, metric: Promise_, byTenant: boolean): Lane[] {
  if (answer === undefined) return [];
  return answer.series
    .filter((line) => line.metric === metric && sum(line.promised ?? []) > 0)
    .map((line) => laneOf(line, answer, byTenant));
}

function laneOf(line: Line, answer: Answer, byTenant: boolean): Lane {
  const met = line.met ?? [];
  const promised = line.promised ?? [];
  const known = (answer.known_until ?? 0) > 0 ? (answer.known_until ?? 0) : answer.end;
  return {
    key: `${line.tenant_id ?? "*"} ${line.service_class}`,
    tenantId: line.tenant_id ?? null,
    name: byTenant ? (line.tenant_name ?? line.tenant_id ?? "all others") : "All tenants",
    serviceClass: line.service_class ?? "",
    targetMs: line.target_ms ?? null,
    met: sum(met),
    promised: sum(promised),
    cells: answer.times.map((startS, at) => ({
      startS,
      endS: startS + answer.step_s,
      met: met[at] ?? 0,
      promised: promised[at] ?? 0,
      grade: startS > known ? "unknown" : gradeOf(met[at] ?? 0, promised[at] ?? 0),
    })),
  };
}

export interface Row {
  key: string;
  lane: Lane;
  cell: Cell;
}

/** The cells in which something was promised, newest first: what the lanes show, as a table. */
export function rowsOf(lanes: readonly Lane[]): Row[] {
  return lanes
    .flatMap((lane) =>
      lane.cells
        .filter(({ promised }) => promised > 0)
        .map((cell) => ({ key: `${lane.key} ${cell.startS}`, lane, cell })),
    )
    .sort((one, other) => other.cell.startS - one.cell.startS);
}

/**
 * Where the requests behind a part of a lane are listed, those first that took longest. A cell counts
 * first tokens when they come; the list has when requests ended, so it reaches further.
 */
export function requestsOf(lane: Lane, metric: Promise_, startS: number, endS: number): string {
  return slowestOf(lane.tenantId, startS, endS + ENDED_BY_S, metric === "ttft_attainment");
}

const ENDED_BY_S = 60;

/** The cell under a place from 0 to 1 across a lane. */
export function cellAt(lane: Lane, part: number): number {
  const at = Math.floor(part * lane.cells.length);
  return Math.min(Math.max(at, 0), lane.cells.length - 1);
}
