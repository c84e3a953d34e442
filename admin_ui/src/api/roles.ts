/** What whoever is signed in may change. Of the operator's people an owner may everything. */

import { useSession } from "./context";

export function useIsRole(...roles: readonly string[]): boolean {
  const may = useSession().session?.place?.may ?? [];
  return may.includes("owner") || roles.some((role) => may.includes(role));
}

/** Of a tenant: whether they, or their key, may change what `right` stands for. */
export function useMayChange(right: "keys" | "billing"): boolean {
  return useSession().session?.place?.changes.includes(right) ?? false;
}
