/** What a key's form holds, and how it becomes what the API takes. Knows no component. */

import type { Schemas } from "../../api/client";
import { formatMoney } from "../../components/format";

export type ApiKey = Schemas["ApiKey"];
export type Scope = ApiKey["scopes"][number];

export const SCOPES: readonly Scope[] = ["inference", "adapters", "usage", "keys"];

/** All of it text, as fields are; empty is without a bound. */
export interface KeyFields {
  name: string;
  scopes: Scope[];
  models: string[];
  expires: string; // 2027-01-31, which is until the end of that day, UTC
  requests: string;
  tokens: string;
  parallel: string;
  budget: string;
  budgetDay: string;
  soft: string; // percent of either budget
  degrade: boolean; // beyond it requests are flex, not refused
}

export const NEW_KEY: KeyFields = {
  name: "default",
  scopes: [],
  models: [],
  expires: "",
  requests: "",
  tokens: "",
  parallel: "",
  budget: "",
  budgetDay: "",
  soft: "",
  degrade: false,
};

type Limits = Schemas["KeyLimits-Input"];

/** `12.500000000000`, as the API writes money, with no more places than it needs. */
function withoutZeros(amount: string | null | undefined): string | null {
  return amount == null ? null : amount.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

function percentOf(part: number | null | undefined): number | null {
  return part == null ? null : Number((part * 100).toFixed(6));
}

export function fieldsOf(key: ApiKey): KeyFields {
  const text = (value: number | string | null | undefined) => (value == null ? "" : String(value));
  return {
    name: key.name,
    scopes: [...key.scopes],
    models: key.models ?? [],
    expires: key.expires_at?.slice(0, 10) ?? "",
    requests: text(key.limits.requests_per_min),
    tokens: text(key.limits.tokens_per_min),
    parallel: text(key.limits.parallel_requests),
    budget: text(withoutZeros(key.limits.budget)),
    budgetDay: text(withoutZeros(key.limits.budget_day)),
    soft: text(percentOf(key.limits.budget_soft)),
    degrade: key.limits.budget_action === "degrade",
  };
}

function count(text: string): number | null {
  return text.trim() === "" ? null : Number(text);
}

function money(text: string): string | null {
  return text.trim() === "" ? null : text.trim();
}

function limitsOf(fields: KeyFields): Limits {
  return {
    requests_per_min: count(fields.requests),
    tokens_per_min: count(fields.tokens),
    parallel_requests: count(fields.parallel),
    budget: money(fields.budget),
    budget_day: money(fields.budgetDay),
    budget_soft: fields.soft.trim() === "" ? null : Number((Number(fields.soft) / 100).toFixed(8)),
    budget_action: fields.degrade ? "degrade" : "refuse",
  };
}

function bodyOf(fields: KeyFields) {
  return {
    name: fields.name.trim(),
    scopes: fields.scopes,
    models: fields.models.length === 0 ? null : fields.models,
    expires_at: fields.expires === "" ? null : `${fields.expires}T23:59:59Z`,
  };
}

export function createBody(fields: KeyFields): Schemas["ApiKeyCreate"] {
  // What is not asked for is not said: it is as the asking key has it.
  return { ...bodyOf(fields), limits: differing(limitsOf(NEW_KEY), limitsOf(fields)) as Limits };
}

/** Only what differs from the key: a key that asks may not touch what it lacks itself. */
export function changeBody(before: KeyFields, after: KeyFields): Schemas["ApiKeyChange"] {
  const limits = differing(limitsOf(before), limitsOf(after));
  return {
    ...differing(bodyOf(before), bodyOf(after)),
    ...(Object.keys(limits).length === 0 ? {} : { limits: limits as Limits }),
  };
}

/** What of `other` is not as in `one`. */
function differing(one: object, other: object): Record<string, unknown> {
  const same = (name: string, value: unknown) =>
    JSON.stringify(Reflect.get(one, name)) === JSON.stringify(value);
  return Object.fromEntries(Object.entries(other).filter(([name, value]) => !same(name, value)));
}

export type KeyState = "active" | "rotating" | "expired" | "revoked";

export function stateOf(key: ApiKey, now: Date = new Date()): KeyState {
  if (key.revoked_at !== null) return "revoked";
  if (key.expires_at !== null && new Date(key.expires_at) <= now) return "expired";
  return key.previous === null ? "active" : "rotating";
}

/** The limits in words, in the order of the form; budgets in `currency`, where that is known. */
export function limitWords(limits: ApiKey["limits"], currency: string | null = null): string[] {
  const money = (amount: string | null | undefined) => {
    const plain = withoutZeros(amount);
    return plain === null || currency === null ? plain : formatMoney(plain, currency);
  };
  const words: [number | string | null | undefined, string][] = [
    [limits.requests_per_min, "requests/min"],
    [limits.tokens_per_min, "tokens/min"],
    [limits.parallel_requests, "parallel"],
    [money(limits.budget), "per month"],
    [money(limits.budget_day), "per day"],
  ];
  const said = words.filter(([value]) => value != null).map(([value, unit]) => `${value} ${unit}`);
  const soft = percentOf(limits.budget_soft);
  const then = limits.budget_action === "degrade" ? "flex" : "a warning";
  return soft === null ? said : [...said, `${then} from ${soft}% of budget`];
}

const MAKERS: Record<string, string> = {
  admin_key: "an admin key",
  api_key: "an API key",
  person: "a person",
};

/** Who created a key, as the audit log names them, in words. */
export function makerOf(actor: string): string {
  const [kind = "", id = ""] = actor.split(":");
  return `${MAKERS[kind] ?? kind} ${id}`;
}
