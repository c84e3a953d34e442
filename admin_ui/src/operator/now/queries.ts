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
const TENANTS_MAX = 200;

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

/** What incidents are told by: whose calls failed, or were late. */
export function useHourByTenant() {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/admin/v1/timeseries",
      {
        params: {
          query: {
            metric: "errors,ttft_attainment,tpot_attainment",
            group_by: "tenant,class",
            limit: TENANTS_MAX,
          },
        },
      },
      { refetchInterval: EVERY_MS },
    ),
  );
}

/** Whose usage is not billed, and whose books differ; asked only while there is a warning of it. */
export function useBooks(isWrong: boolean) {
  const { hooks } = useApi();
  return hooks.useQuery("get", "/admin/v1/reconciliation", {}, { enabled: isWrong }).data;
}

/** How far the probes of adapters are; the worker says it after each request of theirs. */
export function useProbing() {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", "/admin/v1/probing", {}, { refetchInterval: EVERY_MS }));
}
