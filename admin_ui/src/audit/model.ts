/** Entries of the audit log in words, and what a change has changed. Knows no component. */

import type { Schemas } from "../api/client";

export type Side = "own" | "operator";
export type Entry = Schemas["AuditEntry"];

type Details = Record<string, unknown> | null;

export type ChangeKind = "added" | "removed" | "changed" | "same";

export interface Change {
  /** `limits.budget`: a field within a field. */
  path: string;
  kind: ChangeKind;
  before: string | null;
  after: string | null;
}

/** Every field of either, in order of its name; what differs is told apart. */
export function changesOf(before: Details, after: Details): Change[] {
  const old = flat(before);
  const now = flat(after);
  return [...new Set([...old.keys(), ...now.keys()])].sort().map((path) => {
    const was = old.get(path) ?? null;
    const is = now.get(path) ?? null;
    return { path, kind: kindOf(was, is), before: was, after: is };
  });
}

function kindOf(before: string | null, after: string | null): ChangeKind {
  if (before === after) return "same";
  if (before === null) return "added";
  return after === null ? "removed" : "changed";
}

function flat(details: Details, prefix = ""): Map<string, string> {
  const found = new Map<string, string>();
  for (const [name, value] of Object.entries(details ?? {})) {
    const path = `${prefix}${name}`;
    if (isObject(value)) for (const [each, text] of flat(value, `${path}.`)) found.set(each, text);
    else found.set(path, written(value));
  }
  return found;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return (
    typeof value === "object" &&
    value !== null &&
    !Array.isArray(value) &&
    Object.keys(value).length > 0
  );
}

function written(value: unknown): string {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "none";
  return JSON.stringify(value);
}

/** What an entry says beside the target before and after: an invitation, a reason. */
export function otherDetails(entry: Entry): Change[] {
  const { before, after, address, ...others } = entry.details;
  return changesOf({}, others);
}

/** Who it was, in words; without a name as the log has it. */
export function actorOf({ actor, actor_name }: Pick<Entry, "actor" | "actor_name">): string {
  return actor_name ?? actor;
}

/** The beginnings that actions share, to choose from. */
export const ACTION_GROUPS: Record<Side, Record<string, string>> = {
  own: {
    "api_key.*": "API keys",
    "adapter*": "Adapters",
    "rollout*": "Rollouts",
    "member.*": "People",
    "invitation.*": "Invitations",
    "webhook*": "Webhooks",
    "tenant.*": "Account",
  },
  operator: {
    "tenant.*": "Tenants",
    "plan.*": "Plans",
    "api_key.*": "Tenant API keys",
    "admin_key.*": "Admin keys",
    "session.*": "Sign-ins",
    "member.*": "People",
    "invitation.*": "Invitations",
    "price*": "Prices",
    "invoice*": "Invoices",
    "credit.*": "Credit",
    "adapter*": "Adapters",
    "webhook*": "Webhooks",
  },
};

/** The day after, as a date: up to when a range that ends with `day` goes. */
export function dayAfter(day: string): string {
  const next = new Date(`${day}T00:00:00Z`);
  next.setUTCDate(next.getUTCDate() + 1);
  return next.toISOString().slice(0, 10);
}

export interface Times {
  start?: string;
  end?: string;
}

const DAY = /^\d{4}-\d{2}-\d{2}$/;

/** Whole days of UTC as the server takes them; what is no day is no bound. */
export function timesOf(from: string | null, until: string | null): Times {
  return {
    start: from && DAY.test(from) ? `${from}T00:00:00Z` : undefined,
    end: until && DAY.test(until) ? `${dayAfter(until)}T00:00:00Z` : undefined,
  };
}
