/**
 * The token of an invitation. It comes after the # of its link, which browsers send to nobody, and
 * waits in the tab while somebody signs in.
 */

import { at } from "../api/base";

const KEY = "tenora.invitation";
export const PATH = "/invitation";

/** The token that this tab was opened with; it leaves the address at once. */
export function takeInvitation(): string | null {
  if (window.location.pathname !== at(PATH)) return null;
  const token = window.location.hash.slice(1);
  if (token !== "") {
    sessionStorage.setItem(KEY, token);
    window.history.replaceState(null, "", at(PATH));
  }
  return sessionStorage.getItem(KEY);
}

export function forgetInvitation(): void {
  sessionStorage.removeItem(KEY);
}
