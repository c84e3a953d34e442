/** One endpoint of the tenant. */

import { EndpointPage } from "../../webhooks/EndpointPage";

export default function Page() {
  return <EndpointPage side="own" base="/webhooks" param="endpoint" mayChange />;
}
