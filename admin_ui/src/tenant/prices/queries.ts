/** What the page of a tenant's prices asks the API for. */

import { withErrors } from "../../api/client";
import { useApi } from "../../api/context";

export function usePrices() {
  const { hooks } = useApi();
  return withErrors(hooks.useQuery("get", "/v1/prices"));
}
