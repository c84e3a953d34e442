/** What the overview asks for: five questions, each told anew by the live stream. */

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { required } from "../../api/client";
import { useApi } from "../../api/context";
import { type SERVICE, stepOf, TOKENS } from "./model";

const LATELY = 12;

export function useForecast() {
  const { client } = useApi();
  return useQuery({
    queryKey: ["/v1/forecast"],
    queryFn: async () => required((await client.GET("/v1/forecast")).data),
  });
}

/** How one was served in a range; `group_by` as the API has it. */
export function useServed(metric: typeof SERVICE | typeof TOKENS, startS: number, endS: number) {
  const { client } = useApi();
  const step = stepOf(endS - startS);
  // Whole steps: a range that moves on asks anew only when there is something new to show.
  const query = {
    metric,
    step,
    start: new Date(startS * 1000).toISOString(),
    end: new Date(endS * 1000).toISOString(),
    group_by: metric === TOKENS ? "class" : undefined,
  };
  return useQuery({
    queryKey: ["/v1/timeseries", query],
    queryFn: async () => required((await client.GET("/v1/timeseries", { params: { query } })).data),
    placeholderData: keepPreviousData,
  });
}

/** Whether the tenant has never sent anything; undefined: it is not known yet. */
export function useIsNew(): boolean | undefined {
  const { client } = useApi();
  const { data, isError } = useQuery({
    queryKey: ["/v1/requests", "/v1/rejected_calls", "any"],
    queryFn: async () => {
      const params = { query: { limit: 1 } };
      const requests = required((await client.GET("/v1/requests", { params })).data);
      if (requests.data.length > 0) return false;
      const rejected = required((await client.GET("/v1/rejected_calls", { params })).data);
      return rejected.data.length === 0;
    },
  });
  return isError ? false : data;
}

/** A model that can be asked; null: none is known. */
export function useFirstModel(isAllowed: boolean): string | null {
  const { client } = useApi();
  const { data } = useQuery({
    queryKey: ["/v1/models", "first"],
    enabled: isAllowed,
    queryFn: async () =>
      required((await client.GET("/v1/models", { params: { query: { limit: 1 } } })).data).data,
    retry: false,
  });
  return data?.[0]?.id ?? null;
}

export function useEvents() {
  const { client } = useApi();
  return useQuery({
    queryKey: ["/v1/events"],
    queryFn: async () =>
      required((await client.GET("/v1/events", { params: { query: { limit: LATELY } } })).data)
        .data,
  });
}

/** What was done, for who may see the log. */
export function useDone(isAllowed: boolean) {
  const { client } = useApi();
  return useQuery({
    queryKey: ["/v1/audit_logs", "lately"],
    enabled: isAllowed,
    queryFn: async () =>
      required((await client.GET("/v1/audit_logs", { params: { query: { limit: LATELY } } })).data)
        .data,
  });
}
