/** What a person is called wherever they are shown. */

import type { Schemas } from "./client";

type Named = Pick<Schemas["SessionPerson"], "email" | "email_verified" | "name" | "id">;

/** What could be read as an address, by an at sign of any width. */
const LIKE_AN_ADDRESS = /[@\ufe6b\uff20]/;

/** The email, marked where the provider has not verified it: then anybody may claim it. A name
 * is never verified, and is marked where it could be read as an address. */
export function nameOf({ email, email_verified, name, id }: Named): string {
  if (email) return email_verified ? email : `${email} (unverified)`;
  if (name) return LIKE_AN_ADDRESS.test(name) ? `${name} (unverified)` : name;
  return id;
}
