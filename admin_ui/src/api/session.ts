/** Who is signed in: one key and what it opens. Kept in sessionStorage, so it ends with the tab. */

import { createClient } from "./client";
import { ApiError, describe } from "./errors";

export type Role = "tenant" | "admin";

export interface Session {
  key: string;
  role: Role;
}

const STORAGE_KEY = "tenora.session";

export function loadSession(): Session | null {
  const raw = sessionStorage.getItem(STORAGE_KEY);
  if (raw === null) return null;
  try {
    const { key, role } = JSON.parse(raw) as Partial<Session>;
    if (typeof key === "string" && (role === "tenant" || role === "admin")) return { key, role };
  } catch {
    // Written by something else: as good as signed out.
  }
  sessionStorage.removeItem(STORAGE_KEY);
  return null;
}

export function saveSession(session: Session | null): void {
  if (session === null) sessionStorage.removeItem(STORAGE_KEY);
  else sessionStorage.setItem(STORAGE_KEY, JSON.stringify(session));
}

/** A visible part of a key, to tell keys apart without showing one. */
export function maskKey(key: string): string {
  return key.length <= 14 ? "••••" : `${key.slice(0, 10)}…${key.slice(-4)}`;
}

/** Asks the API what a key opens. Throws an Error whose message says why it opens nothing. */
export async function detectRole(key: string): Promise<Role> {
  const client = createClient(key);
  const probes: Record<Role, () => Promise<unknown>> = {
    tenant: () => client.GET("/v1/models"),
    admin: () => client.GET("/admin/v1/plans"),
  };
  // The likelier door first; the operator may have chosen an admin key of any form.
  const order: Role[] = key.startsWith("tna_") ? ["admin", "tenant"] : ["tenant", "admin"];
  const refusals: ApiError[] = [];
  for (const role of order) {
    try {
      await probes[role]();
      return role;
    } catch (error) {
      if (!(error instanceof ApiError) || (error.status !== 401 && error.status !== 403))
        throw new Error(describe(error));
      refusals.push(error);
    }
  }
  const forbidden = refusals.find((reason) => reason.status === 403);
  if (forbidden) throw new Error(`This key is known but not allowed in: ${forbidden.message}`);
  throw new Error("This key is not known here. Check that it is complete and not revoked.");
}
