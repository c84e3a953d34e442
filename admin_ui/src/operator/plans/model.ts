/** A plan as a form has it: texts; and as the API does. What a change is, in words. Pure. */

import type { Schemas } from "../../api/client";
import { compare, isDecimal } from "../../components/decimal";
import { formatBytes, formatCount } from "../../components/format";

export type PlanBody = Schemas["PlanBody"];
export type Plan = Schemas["Plan"];
export const CLASSES = ["priority", "default", "flex"] as const;
export type SlaClass = (typeof CLASSES)[number];
export const LATE = {
  best_effort: "serve it anyway",
  relegate: "serve it after the others",
  refuse: "reject it",
} as const;
export const BUDGET_ACTIONS = {
  refuse: "no change until the budget is used up",
  degrade: "serve requests in class flex",
} as const;

/** The numbers of a plan; "" is none. `range`: what the API takes, in the form's unit. */
export const NUMBERS = {
  ttft_ms: {
    label: "TTFT target (time to first token), ms",
    kind: "decimal",
    range: ["1", "86400000"],
  },
  tpot_ms: {
    label: "TPOT target (time per output token), ms",
    kind: "decimal",
    range: ["0.01", "86400000"],
  },
  weight: { label: "Scheduling weight", kind: "decimal", range: ["0.01", "100"] },
  memory_share: { label: "Share of memory, %", kind: "decimal", range: ["0.1", "100"] },
  requests_per_min: { label: "Requests per minute", kind: "whole" },
  tokens_per_min: { label: "Tokens per minute", kind: "whole" },
  parallel_requests: { label: "Parallel sequences", kind: "whole" },
  adapters: { label: "Adapters", kind: "whole" },
  adapter_bytes: { label: "Adapter storage, bytes", kind: "whole" },
  budget: { label: "Monthly budget", kind: "money" },
  budget_day: { label: "Daily budget", kind: "money" },
  budget_soft: { label: "Soft limit, % of budget", kind: "decimal", range: ["0", "100"] },
} as const satisfies Record<string, NumberKind>;
export type NumberField = keyof typeof NUMBERS;

interface NumberKind {
  label: string;
  kind: "whole" | "decimal" | "money";
  range?: readonly [least: string, most: string];
}

export type PlanFields = Record<NumberField, string> & {
  name: string;
  sla_class: SlaClass;
  tiers: SlaClass[];
  late: keyof typeof LATE;
  budget_action: keyof typeof BUDGET_ACTIONS;
  stored_responses: boolean;
};

const NONE = Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, ""])) as Record<
  NumberField,
  string
>;
export const NEW_PLAN: PlanFields = {
  ...NONE,
  weight: "1",
  name: "",
  sla_class: "default",
  tiers: ["default", "flex"],
  late: "best_effort",
  budget_action: "refuse",
  stored_responses: false,
};

const text = (value: number | string | null | undefined): string =>
  value === null || value === undefined ? "" : plain(String(value));

/** `50.000000000000` as `50`. */
function plain(value: string): string {
  return value.includes(".") ? value.replace(/0+$/, "").replace(/\.$/, "") : value;
}

/** A part of one as a percentage, without a float's tail. */
function percent(value: number | null | undefined): string {
  return value === null || value === undefined ? "" : String(Number((value * 100).toPrecision(12)));
}

export function fieldsOf(plan: Plan): PlanFields {
  const { limits } = plan;
  return {
    name: plan.name,
    sla_class: plan.sla_class,
    tiers: plan.tiers,
    late: plan.late,
    budget_action: limits.budget_action,
    stored_responses: plan.stored_responses,
    ttft_ms: text(plan.ttft_ms),
    tpot_ms: text(plan.tpot_ms),
    weight: text(plan.weight),
    memory_share: percent(plan.memory_share),
    requests_per_min: text(limits.requests_per_min),
    tokens_per_min: text(limits.tokens_per_min),
    parallel_requests: text(limits.parallel_requests),
    adapters: text(limits.adapters),
    adapter_bytes: text(limits.adapter_bytes),
    budget: text(limits.budget),
    budget_day: text(limits.budget_day),
    budget_soft: percent(limits.budget_soft),
  };
}

/** What is wrong with each field that cannot be sent; empty: nothing. */
export function faultsIn(fields: PlanFields): Partial<Record<NumberField | "name", string>> {
  const faults: Partial<Record<NumberField | "name", string>> = {};
  if (!/^[a-z0-9][a-z0-9_-]{0,63}$/.test(fields.name))
    faults.name = "Use lowercase letters, digits, - and _. Start with a letter or digit";
  for (const [field, of] of Object.entries(NUMBERS) as [NumberField, NumberKind][]) {
    const fault = fields[field] === "" ? null : faultOf(fields[field], of);
    if (fault) faults[field] = fault;
  }
  if (fields.weight === "") faults.weight = "Enter a number from 0.01 to 100";
  return faults;
}

function faultOf(value: string, { kind, range }: NumberKind): string | null {
  if (kind === "whole")
    return /^\d+$/.test(value) ? null : "Enter a whole number, or leave this empty";
  if (!isDecimal(value)) return "Enter a number such as 12.5, or leave this empty";
  if (range && (compare(value, range[0]) < 0 || compare(value, range[1]) > 0))
    return `Enter a number from ${range[0]} to ${range[1]}`;
  return null;
}

const number = (value: string): number | null => (value === "" ? null : Number(value));
/** A percentage as a part of one, moved by its point so that 80 is 0.8 and nothing near it. */
const part = (value: string): number | null =>
  value === "" ? null : Number((Number(value) / 100).toPrecision(12));

export function bodyOf(fields: PlanFields): PlanBody {
  return {
    sla_class: fields.sla_class,
    tiers: CLASSES.filter((each) => fields.tiers.includes(each)),
    late: fields.late,
    ttft_ms: number(fields.ttft_ms),
    tpot_ms: number(fields.tpot_ms),
    weight: Number(fields.weight),
    memory_share: part(fields.memory_share),
    stored_responses: fields.stored_responses,
    limits: {
      requests_per_min: number(fields.requests_per_min),
      tokens_per_min: number(fields.tokens_per_min),
      parallel_requests: number(fields.parallel_requests),
      adapters: number(fields.adapters),
      adapter_bytes: number(fields.adapter_bytes),
      budget: fields.budget || null,
      budget_day: fields.budget_day || null,
      budget_soft: part(fields.budget_soft),
      budget_action: fields.budget_action,
    },
  };
}

export interface Change {
  label: string;
  from: string;
  to: string;
}

/** What a plan's tenants will notice, field by field. */
export function changesOf(before: PlanFields, after: PlanFields): Change[] {
  const found: Change[] = [];
  const note = (label: string, from: string, to: string) => {
    if (from !== to) found.push({ label, from, to });
  };
  note("Service class", before.sla_class, after.sla_class);
  const tiers = ({ tiers }: PlanFields) =>
    CLASSES.filter((each) => tiers.includes(each)).join(", ");
  note("Selectable classes", tiers(before), tiers(after));
  note("If the TTFT target cannot be met", LATE[before.late], LATE[after.late]);
  for (const [field, { label }] of Object.entries(NUMBERS) as [NumberField, { label: string }][])
    note(label, shown(field, before[field]), shown(field, after[field]));
  note(
    "Above the soft limit",
    BUDGET_ACTIONS[before.budget_action],
    BUDGET_ACTIONS[after.budget_action],
  );
  const allowed = ({ stored_responses }: PlanFields) =>
    stored_responses ? "allowed" : "not allowed";
  note("Stored responses", allowed(before), allowed(after));
  return found;
}

const UNSET: Partial<Record<NumberField, string>> = {
  ttft_ms: "no target",
  tpot_ms: "no target",
  memory_share: "no share",
  budget: "no budget",
  budget_day: "no budget",
  budget_soft: "no soft limit",
};

export function shown(field: NumberField, value: string): string {
  if (value === "") return UNSET[field] ?? "no limit";
  if (field === "adapter_bytes") return formatBytes(Number(value));
  return NUMBERS[field].kind === "whole" ? formatCount(Number(value)) : value;
}
