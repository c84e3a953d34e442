/** What an operator should look at now: since when it is so, whose calls it is about, and where to look. */

import type { Schemas } from "../../api/client";
import { counted, formatCount, formatMs } from "../../components/format";
import { rejectedOf } from "../../rejections/model";
import {
  type Answer,
  type EngineNow,
  type Line,
  LONG_WAIT_S,
  linesOf,
  type ProcessesNow,
  TARGETS,
  targetOf,
  total,
} from "./model";

export interface Whose {
  id: string;
  name: string | null;
}

export interface Incident {
  key: string;
  grade: "bad" | "fair";
  text: string;
  /** Unix seconds; null: it is not known any more. */
  sinceS: number | null;
  /** Whose calls; none: everybody's. */
  tenants: readonly Whose[];
  /** Where to look, and what is there. */
  to: string;
  look: string;
}

/** Of what is not billed and of books that differ: since when, and whose. */
export interface Books {
  sinceS: number | null;
  unbilled: readonly string[];
  differing: readonly string[];
}

const unique = (ids: readonly (string | null)[]): string[] => [
  ...new Set(ids.filter((id) => id !== null)),
];

export function booksOf(state: Schemas["Reconciliation"] | undefined): Books | null {
  if (state === undefined) return null;
  const times = state.newest_unrated_events.map(({ since }) => Date.parse(since) / 1000);
  return {
    sinceS: times.length === 0 ? null : Math.min(...times),
    unbilled: unique(state.newest_unrated_events.map(({ tenant_id }) => tenant_id)),
    differing: unique(state.last_run?.named.map(({ tenant_id }) => tenant_id) ?? []),
  };
}

export interface Known {
  /** Of the last hour, by tenant and class. */
  byTenant: Answer | undefined;
  /** The same of the platform: restarts. */
  hour: Answer | undefined;
  engine: EngineNow | null;
  processes: ProcessesNow | null;
  books: Books | null;
  nowS: number;
}

const LATELY = 10;
const FEW = 5;
/** Of one kind; the rest is one line. */
const TENANTS_MAX = 5;

/** The worst first. */
export function incidents(known: Known): Incident[] {
  const found = [
    ...ofEngine(known),
    ...ofProcesses(known),
    ...cut(ofErrors(known), "/operator/rejected?range=1h&status=5xx"),
    ...ofWaits(known),
    ...cut(ofPromises(known), "/operator/service"),
    ...ofRestarts(known),
    ...ofWarnings(known),
  ];
  return found.sort((one, other) => Number(one.grade === "fair") - Number(other.grade === "fair"));
}

const of = (line: Line): Whose[] =>
  line.tenant_id ? [{ id: line.tenant_id, name: line.tenant_name ?? null }] : [];

function ofEngine({ engine }: Known): Incident[] {
  if (engine === null || engine.ready) return [];
  return [
    {
      key: "engine",
      grade: "bad",
      text: engine.reason ?? "The engine does not answer requests.",
      sinceS: engine.sinceS,
      tenants: [],
      to: "/operator/engine",
      look: "Engine",
    },
  ];
}

function ofProcesses({ processes }: Known): Incident[] {
  if (processes === null) return [];
  const at = { grade: "bad", tenants: [], to: "#processes", look: "Processes" } as const;
  const lost: Incident = {
    ...at,
    key: "redis",
    text: "Redis does not answer, so it is not known which processes are running.",
    sinceS: processes.sinceS.redis ?? null,
  };
  return [
    ...(processes.known ? [] : [lost]),
    ...processes.processes.flatMap(({ id, name, outages }) =>
      Object.entries(outages).map(([work, why]) => ({
        ...at,
        key: `${id} ${work}`,
        text: `The background task “${work}” of ${name} fails: ${why}`,
        sinceS: processes.sinceS[`${id} ${work}`] ?? null,
      })),
    ),
  ];
}

function ofErrors({ byTenant, nowS }: Known): Incident[] {
  return linesOf(byTenant, "errors").flatMap((line) => {
    const late = line.values.slice(-LATELY);
    const count = total(late);
    if ((line.kind ?? "") < "500" || count === 0) return [];
    const sinceS = firstOf(byTenant, (at) => (line.values[at] ?? 0) > 0);
    return [
      {
        key: `errors ${line.kind} ${line.tenant_id} ${line.service_class}`,
        grade: "bad",
        text: `${counted(count, "call")} answered with ${line.kind} in the last 10 minutes`,
        sinceS,
        tenants: of(line),
        to: rejectedOf("/operator/rejected", {
          startS: sinceS ?? nowS - 600,
          endS: nowS + 60,
          status: line.kind ?? undefined,
          tenant: line.tenant_id,
        }),
        look: "Rejected calls",
      },
    ];
  });
}

function ofWaits({ engine, byTenant, nowS }: Known): Incident[] {
  const names = new Map(byTenant?.series.map((each) => [each.tenant_id, each.tenant_name]));
  return Object.entries(engine?.oldestS ?? {})
    .filter(([, seconds]) => seconds > LONG_WAIT_S)
    .map(([name, seconds]) => {
      const id = engine?.oldestOf[name] || null;
      return {
        key: `wait ${name}`,
        grade: "fair",
        text: `A request of class ${name} has waited for ${formatMs(seconds * 1000)}.`,
        sinceS: nowS - seconds,
        tenants: id === null ? [] : [{ id, name: names.get(id) ?? null }],
        to: "/operator/fairness",
        look: "Wait times by cause",
      };
    });
}

function ofPromises({ byTenant, nowS }: Known): Incident[] {
  return (Object.keys(TARGETS) as (keyof typeof TARGETS)[]).flatMap((metric) =>
    linesOf(byTenant, metric).flatMap((line) => {
      const met = total(line.met?.slice(-LATELY) ?? []);
      const promised = total(line.promised?.slice(-LATELY) ?? []);
      if (promised < FEW || met / promised >= 0.9) return [];
      const sinceS = firstOf(byTenant, (at) => (line.met?.[at] ?? 0) < (line.promised?.[at] ?? 0));
      const isFirst = metric === "ttft_attainment";
      return [
        {
          key: `${metric} ${line.tenant_id} ${line.service_class}`,
          grade: "fair",
          text:
            `Class ${line.service_class}: ${formatCount(met)} of ${formatCount(promised)} sequences met their ` +
            `${isFirst ? "TTFT" : "TPOT"} target in the last 10 minutes${targetOf(line)}`,
          sinceS,
          tenants: of(line),
          to: slowestOf(line.tenant_id ?? null, sinceS ?? nowS - 600, nowS + 60, isFirst),
          look: "Slowest requests",
        },
      ];
    }),
  );
}

/** Where requests are listed, those first that took longest. */
export function slowestOf(
  tenant: string | null,
  startS: number,
  endS: number,
  isFirst: boolean,
): string {
  const query = new URLSearchParams({
    start: String(Math.floor(startS)),
    end: String(Math.ceil(endS)),
    sort: isFirst ? "-ttft" : "-tpot",
  });
  if (tenant !== null) query.set("tenant", tenant);
  return `/operator/requests?${query}`;
}

function ofRestarts({ hour }: Known): Incident[] {
  return linesOf(hour, "restarts").flatMap((line) => {
    const count = total(line.values);
    if (count === 0) return [];
    const at = line.values.findIndex((value) => (value ?? 0) > 0);
    return [
      {
        key: `restart ${line.kind}`,
        grade: "fair",
        text: `${line.kind} was restarted ${count === 1 ? "once" : `${formatCount(count)} times`} in the last hour.`,
        sinceS: hour?.times[at] ?? null,
        tenants: [],
        to: "#processes",
        look: "Processes",
      },
    ];
  });
}

const PLACES: Record<string, [string, string]> = {
  unbilled: ["/operator/billing?tab=waiting", "Unbilled usage"],
  books: ["/operator/reconciliation", "Reconciliation"],
  store: ["/operator/memory", "Memory"],
};

function ofWarnings({ processes, books, byTenant }: Known): Incident[] {
  const names = new Map(byTenant?.series.map((each) => [each.tenant_id, each.tenant_name]));
  return (processes?.warnings ?? []).map(({ about, text, sinceS }) => {
    const [to, look] = PLACES[about] ?? ["#processes", "Processes"];
    const own = { unbilled: books?.unbilled, books: books?.differing }[about] ?? [];
    return {
      key: `warning ${about} ${text}`,
      grade: "fair",
      text,
      sinceS: (about === "unbilled" ? books?.sinceS : null) ?? sinceS,
      tenants: own.slice(0, TENANTS_MAX).map((id) => ({ id, name: names.get(id) ?? null })),
      to,
      look,
    };
  });
}

/** When the first of the last minutes that is like that began. */
function firstOf(answer: Answer | undefined, isLike: (at: number) => boolean): number | null {
  const times = answer?.times ?? [];
  const from = Math.max(times.length - LATELY, 0);
  const at = times.findIndex((_, index) => index >= from && isLike(index));
  return times[at] ?? null;
}

/** The first ones, and how many more tenants there are. */
function cut(found: Incident[], to: string): Incident[] {
  const [worst] = found;
  const more = found.length - TENANTS_MAX;
  if (worst === undefined || more <= 0) return found;
  const rest: Incident = {
    ...worst,
    key: `more ${to}`,
    text: `${formatCount(more)} more of this kind`,
    tenants: [],
    to,
    look: "Show all",
  };
  return [...found.slice(0, TENANTS_MAX), rest];
}
