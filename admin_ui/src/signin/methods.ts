/** What the door knows before anybody is signed in: how one may sign in, and what went wrong. */

import { useQuery } from "@tanstack/react-query";
import { at } from "../api/base";
import { useApi } from "../api/context";

function useMethods() {
  const { client } = useApi();
  return useQuery({
    queryKey: ["auth", "methods"],
    queryFn: async () => (await client.GET("/auth/methods")).data?.oidc ?? null,
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** What the sign-in provider is called; null: there is none, or it is not known yet. */
export function useProvider(): string | null {
  return useMethods().data ?? null;
}

/** Whether people can sign in at all; undefined: it is not known yet. */
export function useHasProvider(): boolean | undefined {
  const { data } = useMethods();
  return data === undefined ? undefined : data !== null;
}

/** Where the provider's sign-in begins; afterwards the browser is back at this page. */
export function loginUrl(): string {
  const query = new URLSearchParams(window.location.search);
  query.delete("sign_in");
  const text = query.toString();
  const page = `${window.location.pathname}${text && `?${text}`}`;
  const next = page.length > NEXT_LENGTH_MAX ? window.location.pathname : page;
  return `${at("/auth/login")}?next=${encodeURIComponent(next)}`;
}

/** The longest that the server takes. */
const NEXT_LENGTH_MAX = 500;

const FAILURES: Record<string, string> = {
  sign_in_not_begun: "The sign-in timed out or was started in another window. Try again.",
  sign_in_refused:
    "The sign-in provider could not confirm your identity. Try again, or contact the operator.",
  sign_in_not_set_up: "No sign-in provider is configured on this server. Sign in with an API key.",
  sign_in_unavailable: "The sign-in provider cannot be reached. Try again in a minute.",
};

/** What a sign-in that failed left in the address. */
export function failure(search: string): string | null {
  const code = new URLSearchParams(search).get("sign_in");
  return code === null ? null : (FAILURES[code] ?? "The sign-in failed. Try again.");
}
