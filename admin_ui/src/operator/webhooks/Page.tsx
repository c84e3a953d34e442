/** The endpoints of the operator. */

import { useIsRole } from "../../api/roles";
import { EndpointsPage } from "../../webhooks/EndpointsPage";

export default function Page() {
  const mayChange = useIsRole("operator");
  return (
    <EndpointsPage
      side="operator"
      base="/operator/webhooks"
      description="Endpoints of yours that are told of every tenant's events, signed."
      mayChange={mayChange}
    />
  );
}
