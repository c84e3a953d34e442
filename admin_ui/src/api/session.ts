/** Who is signed in: one key and what it opens. Kept in sessionStorage, so it ends with the tab. */

import { createClient, required } from "./client";
import { ApiError, describe } from "./errors";

export type Role = "tenant" | "admin";

export interface Session {
  key: string;
  role: Role;
  /** The tenant's. */
  name: string | null;
  /** The key's scopes, of an admin key its roles; null: not known. */
  may: string[] | null;
}

const STORAGE_KEY = "tenora.session";

export function loadSession(): Session | null {
  const raw = sessionStorage.getItem(STORAGE_KEY);
  if (raw === null) return null;
  try {
    const { key, role, name = null, may = null } = JSON.parse(raw) as Partial<Session>;
    if (typeof key === "string" && (role === "tenant" || role === "admin"))
      return { key, role, name, may };
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

/** Asks the API whose key this is. Throws an Error whose message says why it opens nothing. */
export async function whoHas(key: string): Promise<Session> {
  try {
    const { data } = await createClient(key).GET("/v1/me");
    const me = required(data);
    if (me.type === "api_key")
      return { key, role: "tenant", name: me.tenant?.name ?? null, may: me.scopes };
    if (me.roles.every((role) => role === "metrics"))
      throw new Error("This key reads metrics only; there is nothing here for it.");
    return { key, role: "admin", name: null, may: me.roles };
  } catch (error) {
    if (error instanceof ApiError && error.status === 401)
      throw new Error("This key is not known here. Check that it is complete and not revoked.");
    if (error instanceof ApiError && error.status === 403)
      throw new Error(`This key is known but not allowed in: ${error.message}`);
    throw new Error(describe(error));
  }
}
