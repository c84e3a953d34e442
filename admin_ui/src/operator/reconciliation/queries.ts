/** What the page of reconciliations asks the API for. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../../api/client";
import { useApi } from "../../api/context";
import { useChange, usePaged } from "../../api/paged";
import type { Run } from "./model";

const STATE = "/admin/v1/reconciliation";
const RUNS = "/admin/v1/reconciliation/runs";
const PAGE = 50;
const SOON_MS = 2_000;

export function useRuns() {
  return usePaged<Run, Schemas["RunPage"]>(RUNS, {}, (client, after) =>
    client.GET(RUNS, { params: { query: { after, limit: PAGE } } }),
  );
}

/** One run; asked again until it is done. */
export function useOneRun(id: string) {
  const { client } = useApi();
  return useQuery({
    queryKey: [RUNS, id],
    queryFn: async () =>
      required(
        (
          await client.GET("/admin/v1/reconciliation/runs/{run_id}", {
            params: { path: { run_id: id } },
          })
        ).data,
      ),
    refetchInterval: ({ state }) =>
      state.data === undefined || ["waiting", "running"].includes(state.data.state)
        ? SOON_MS
        : false,
  });
}

export function useAsk(onDone: (run: Run) => void) {
  return useChange(
    [STATE],
    (client, body: Schemas["RunCreate"]) => client.POST(RUNS, { body }),
    onDone,
  );
}
