/** The endpoints of the operator. */

import { useIsRole } from "../../api/roles";
import { EndpointsPage } from "../../webhooks/EndpointsPage";

export default function Page() {
  const mayChange = useIsRole("operator");
  return (
    <EndpointsPage
      side="operator"
      base="/operator/webhooks"
      description="Your servers that receive signed events of all tenants."
      mayChange={mayChange}
    />
  );
}
