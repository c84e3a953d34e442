/** The endpoints of the tenant. */

import { EndpointsPage } from "../../webhooks/EndpointsPage";

export default function Page() {
  return (
    <EndpointsPage
      side="own"
      base="/webhooks"
      description="Servers of yours that are told what happens: adapters, roll-outs, budgets, keys, invoices. Each event is signed."
      mayChange
    />
  );
}
