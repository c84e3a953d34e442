/**
 * The token of an invitation. It comes after the # of its link, which browsers send to nobody, and
 * waits in the tab while somebody signs in.
 */

const KEY = "tenora.invitation";
export const PATH = "/invitation";

/** The token that this tab was opened with; it leaves the address at once. */
export function takeInvitation(): string | null {
  if (window.location.pathname !== PATH) return null;
  const token = window.location.hash.slice(1);
  if (token !== "") {
    sessionStorage.setItem(KEY, token);
    window.history.replaceState(null, "", PATH);
  }
  return sessionStorage.getItem(KEY);
}

export function forgetInvitation(): void {
  sessionStorage.removeItem(KEY);
}
