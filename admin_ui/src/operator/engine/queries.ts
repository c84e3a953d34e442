/** What the engine says of itself. */

import { withErrors } from "../../api/client";
import { useApi } from "../../api/context";

/** Counters move with each step and no event tells of it; a page in the background does not ask. */
const POLL_MS = 5_000;

export function useEngine() {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery("get", "/admin/v1/engine", undefined, {
      refetchInterval: POLL_MS,
      refetchIntervalInBackground: false,
    }),
  );
}
