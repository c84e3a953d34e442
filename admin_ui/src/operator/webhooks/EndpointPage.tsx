/** One endpoint of the operator. */

import { useIsRole } from "../../api/roles";
import { EndpointPage } from "../../webhooks/EndpointPage";

export default function Page() {
  const mayChange = useIsRole("operator");
  return (
    <EndpointPage
      side="operator"
      base="/operator/webhooks"
      param="operator_endpoint"
      mayChange={mayChange}
    />
  );
}
