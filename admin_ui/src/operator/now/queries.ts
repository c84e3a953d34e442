/** What the Now page asks for: the last hour by class; the rest comes with the live stream. */

import { type Schemas, withErrors } from "../../api/client";
import { useApi } from "../../api/context";

const METRICS = [
  "output_tokens",
  "prompt_tokens",
  "ttft_attainment",
  "tpot_attainment",
  "answers",
  "errors",
  "running",
  "oldest_wait",
  "adapter_loads",
  "restarts",
  "pool",
].join();
/** The stream says when service has changed; queues and pages change without a word. */
const EVERY_MS = 20_000;

export type { Schemas };

export function useLastHour() {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/admin/v1/timeseries",
      { params: { query: { metric: METRICS, group_by: "class" } } },
      { refetchInterval: EVERY_MS },
    ),
  );
}

/** How far the probes of adapters are; the worker says it after each request of theirs. */
export function useProbing() {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", "/admin/v1/probing", {}, { refetchInterval: EVERY_MS }));
}
