/** What the page of fairness asks: who waited because of whom, and service beside weight. */

import { keepPreviousData } from "@tanstack/react-query";
import { withErrors } from "../../api/client";
import { useApi } from "../../api/context";

/** Beside the live stream, whose word may be lost; minutes are added to every five seconds. */
const AGAIN_MS = 30_000;

function asked(startS: number, endS: number) {
  return {
    params: {
      query: {
        start: new Date(startS * 1000).toISOString(),
        end: new Date(endS * 1000).toISOString(),
      },
    },
  };
}

export function useWaits(startS: number, endS: number) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery("get", "/admin/v1/waits", asked(startS, endS), {
      refetchInterval: AGAIN_MS,
      placeholderData: keepPreviousData,
    }),
  );
}

export function useFairness(startS: number, endS: number) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery("get", "/admin/v1/fairness", asked(startS, endS), {
      refetchInterval: AGAIN_MS,
      placeholderData: keepPreviousData,
    }),
  );
}
