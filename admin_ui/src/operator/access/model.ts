/** Admin keys in words, and what their form sends. Knows no component. */

import type { Schemas } from "../../api/client";

export type AdminKey = Schemas["AdminKey"];
export type AdminKeyState = "active" | "rotating" | "expired" | "revoked" | "configured";

export function stateOf(key: AdminKey, now: Date = new Date()): AdminKeyState {
  if (key.source === "configured") return "configured";
  if (key.revoked_at) return "revoked";
  if (key.expires_at && new Date(key.expires_at) <= now) return "expired";
  return key.previous ? "rotating" : "active";
}

export const STATE_COLORS: Record<AdminKeyState, string> = {
  active: "teal",
  rotating: "blue",
  configured: "grape",
  expired: "yellow",
  revoked: "gray",
};

/** Until the end of that day, UTC; an empty field is no end. */
export function untilEndOf(day: string): string | null {
  return day === "" ? null : `${day}T23:59:59Z`;
}
