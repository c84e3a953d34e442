/** What a person is called wherever they are shown. */

import type { Schemas } from "./client";

type Named = Pick<Schemas["SessionPerson"], "email" | "email_verified" | "name" | "id">;

/** The email, marked where the provider has not verified it: then anybody may claim it. */
export function nameOf({ email, email_verified, name, id }: Named): string {
  if (email) return email_verified ? email : `${email} (unverified)`;
  return name ?? id;
}
