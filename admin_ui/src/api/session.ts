/**
 * Who is signed in. The session is in a cookie that no script can read; here is what the server says
 * of it. A key is shown once, to be exchanged, and kept nowhere.
 */

import { createClient, type Schemas } from "./client";
import { ApiError, describe } from "./errors";
import { nameOf } from "./person";

export type Role = "tenant" | "admin";

/** What a request says beside the cookie. */
export interface Credentials {
  csrf: string;
  /** Whose request it is, of somebody who belongs to several. */
  tenant: string | null;
}

/** A tenant, or the operator's side, as what somebody may look around. */
export interface Place {
  role: Role;
  tenant: string | null;
  name: string | null;
  /** Scopes, on the operator's side roles. */
  may: string[];
  /** Of these what may be changed, too. */
  changes: string[];
}

export interface Session {
  csrf: string;
  /** Of a person, their email; of a key, the part of it that may be seen. */
  who: string;
  /** What the key is called; null: a person. */
  keyName: string | null;
  isPerson: boolean;
  places: Place[];
  place: Place | null;
}

const PLACE_KEY = "tenora.place";
const OPERATOR = "operator";

export function credentialsOf(session: Session | null): Credentials {
  return { csrf: session?.csrf ?? "", tenant: session?.place?.tenant ?? null };
}

/** The session as the pages know it. Throws an Error where a key opens nothing. */
export function sessionOf(view: Schemas["SessionView"], wanted: string | null): Session {
  const places = view.tenants.map(placeOf);
  if (view.operator_role !== null)
    places.push({
      role: "admin",
      tenant: null,
      name: null,
      may: [view.operator_role],
      changes: [view.operator_role],
    });
  if (view.type === "admin_key" && view.operator_role === "metrics")
    throw new Error("This key can only read metrics. Sign in with a key that has another role.");
  const key = view.type === "api_key" ? "tn_" : "tna_";
  return {
    csrf: view.csrf_token,
    who: view.person ? nameOf(view.person) : `${key}${view.key?.prefix ?? "configured"}…`,
    keyName: view.key?.name ?? null,
    isPerson: view.type === "person",
    places,
    place: places.find((place) => placeId(place) === wanted) ?? places[0] ?? null,
  };
}

/** What somebody sees of a tenant, and of inference what they may do. */
function placeOf(tenant: Schemas["SessionTenant"]): Place {
  const may: string[] = tenant.reads.filter(
    (scope) => scope !== "inference" || tenant.scopes.includes(scope),
  );
  if (tenant.role === "owner") may.push("people");
  const changes: string[] = [...tenant.scopes];
  // What is about bills is changed by owners, by people of that role, and by keys that make keys.
  if (tenant.role === "billing" || tenant.scopes.includes("keys")) changes.push("billing");
  return { role: "tenant", tenant: tenant.id, name: tenant.name, may, changes };
}

export function placeId(place: Place): string {
  return place.tenant ?? OPERATOR;
}

/** The place chosen last in this tab: an id, no secret. */
export function chosenPlace(): string | null {
  return sessionStorage.getItem(PLACE_KEY);
}

export function choosePlace(place: Place): void {
  sessionStorage.setItem(PLACE_KEY, placeId(place));
}

const NOBODY: Credentials = { csrf: "", tenant: null };

/** Asks the server who is signed in; null: nobody. */
export async function loadSession(): Promise<Session | null> {
  try {
    const { data } = await createClient(NOBODY).GET("/auth/session");
    return data === undefined ? null : sessionOf(data, chosenPlace());
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null;
    throw error;
  }
}

/** What is wrong with a key before it is sent, in a sentence; null: nothing that can be seen. */
export function keyProblem(key: string): string | null {
  if (key === "") return "Enter an API key.";
  const at = [...key].findIndex((letter) => letter < "!" || letter > "~");
  if (at >= 0) {
    const letter = [...key][at] ?? "";
    const shown = letter.trim() === "" ? "a space" : `“${letter}”`;
    return `API keys contain no spaces and only ASCII characters. This one has ${shown} at position ${at + 1}. Copy the key again.`;
  }
  return null;
}

/** Exchanges a key for a session. Throws an Error whose message says why it opens nothing. */
export async function signInByKey(key: string): Promise<Session> {
  try {
    const { data } = await createClient(NOBODY).POST("/auth/session", { body: { key } });
    if (data === undefined) throw new Error("The server sent an empty response. Try again.");
    return sessionOf(data, null);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401)
      throw new Error(
        "This API key is not valid. Check that you copied all of it and that it has not been revoked.",
      );
    if (error instanceof ApiError && error.status === 403)
      throw new Error(`This API key cannot sign in: ${error.message}`);
    throw new Error(describe(error));
  }
}

/** Ends the session on the server. Returns where the identity provider signs out, if anywhere.
 * Throws an Error where the session may still be open. */
export async function endSession(session: Session): Promise<string | null> {
  try {
    const { data } = await createClient(credentialsOf(session)).POST("/auth/logout");
    return data?.provider_url ?? null;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null; // it was over already
    throw error;
  }
}
