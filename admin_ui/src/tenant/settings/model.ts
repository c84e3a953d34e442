/** A tenant's settings as pages have them. Pure. */

import type { Schemas } from "../../api/client";

/** Stored responses are there where the server has them. */
export type Settings = Schemas["TenantSettings"] & {
  stored_response_days?: number | null;
  stored_responses_allowed?: boolean;
};
export type SettingsChange = Partial<Schemas["TenantSettingsChange"]> & {
  stored_response_days?: number | null;
  delete_stored_responses?: boolean;
};

/** The longest that the server takes. */
export const CONTENTS_DAYS_MAX = 366;
export const RESPONSES_DAYS_MAX = 90;

/** A number of days as the server takes it; null: none. */
export function daysOf(text: string, most: number): number | null {
  const days = Number(text);
  return /^\d{1,3}$/.test(text) && days >= 1 && days <= most ? days : null;
}

export function daysWords(days: number): string {
  return days === 1 ? "1 day" : `${days} days`;
}
