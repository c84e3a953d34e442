/** The endpoints of the tenant. */

import { EndpointsPage } from "../../webhooks/EndpointsPage";

export default function Page() {
  return (
    <EndpointsPage
      side="own"
      base="/webhooks"
      description="Your servers that receive signed events about adapters, rollouts, budgets, API keys and invoices."
      mayChange
    />
  );
}
