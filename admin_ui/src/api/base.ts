/** Where the platform is: a proxy may show it below a path. The page's <base> says which. */

const inBrowser = typeof document !== "undefined";

/** The path without a slash at its end; "" at the root. */
export const BASE = inBrowser ? new URL(".", document.baseURI).pathname.replace(/\/$/, "") : "";

/** The address that programs are given. */
export const ORIGIN = inBrowser ? `${window.location.origin}${BASE}` : "";

/** The address of a path of the server, such as /v1/models. */
export function at(path: string): string {
  return `${BASE}${path}`;
}
