/** What the Service page asks for: attainment by tenant and class, and by class over all. */

import { keepPreviousData } from "@tanstack/react-query";
import { withErrors } from "../../api/client";
import { useApi } from "../../api/context";
import type { Promise_ } from "./model";
import { stepOf } from "./model";

const LANES_MAX = 60;

export function useAttainment(metric: Promise_, startS: number, endS: number, byTenant: boolean) {
  const { hooks } = useApi();
  return withErrors(
    hooks.useQuery(
      "get",
      "/admin/v1/timeseries",
      {
        params: {
          query: {
            metric,
            group_by: byTenant ? "tenant,class" : "class",
            start: new Date(startS * 1000).toISOString(),
            end: new Date(endS * 1000).toISOString(),
            step: stepOf(startS, endS),
            limit: LANES_MAX,
          },
        },
      },
      { placeholderData: keepPreviousData },
    ),
  );
}
