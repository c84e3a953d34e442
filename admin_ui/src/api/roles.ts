/** What the operator's people may change, by their role; an owner may everything. */

import { useSession } from "./context";

export function useIsRole(...roles: readonly string[]): boolean {
  const may = useSession().session?.place?.may ?? [];
  return may.includes("owner") || roles.some((role) => may.includes(role));
}
