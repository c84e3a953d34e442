/** Whose people, and what their roles may. Knows no component. */

import type { Schemas } from "../api/client";

/** One's own tenant's people, the operator's, or, for the operator, those of the tenant of this id. */
export type Whose = "own" | "operator" | { tenant: string };

export type Person = Schemas["MemberOut"];
export type Invitation = Schemas["Invitation"];
export type MemberRole = Schemas["MemberChange"]["role"];
export type OperatorRole = Schemas["OperatorChange"]["role"];

const MEMBERS: Record<MemberRole, string> = {
  owner: "full access, including people and keys",
  developer: "adapters, inference, usage",
  billing: "usage, invoices and the billing profile",
  viewer: "read only",
};

export const OPERATORS: Record<OperatorRole, string> = {
  owner: "full access, including admin keys and people",
  operator: "tenants, plans, keys, adapters, webhooks",
  billing: "prices, invoices, credit",
  read_only: "read only",
  metrics: "only the /metrics endpoint",
};

/** The roles with what they may, in words. */
export function rolesOf(whose: Whose): Record<string, string> {
  return whose === "operator" ? OPERATORS : MEMBERS;
}

export function isMemberRole(role: string): role is MemberRole {
  return role in MEMBERS;
}

export function isOperatorRole(role: string): role is OperatorRole {
  return role in OPERATORS;
}

/** A role as it goes to the server. Throws for one that does not exist there. */
export function memberRole(role: string): MemberRole {
  if (!isMemberRole(role)) throw new RangeError(`${role} is not a tenant role.`);
  return role;
}

export function operatorRole(role: string): OperatorRole {
  if (!isOperatorRole(role)) throw new RangeError(`${role} is not an operator role.`);
  return role;
}
