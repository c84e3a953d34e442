/** One request of whichever tenant. */

import { Anchor, Text } from "@mantine/core";
import { Link, useParams } from "react-router";
import { useTenantNames } from "../../requests/queries";
import { RequestFrame } from "../../requests/RequestFrame";

export default function RequestPage() {
  const { request = "" } = useParams();
  return (
    <RequestFrame
      side="operator"
      request={request}
      back="/operator/requests"
      adapterAddress={() => null}
      whose={({ tenant_id }) => <Whose tenant={tenant_id} />}
    />
  );
}

function Whose({ tenant }: { tenant: string }) {
  const names = useTenantNames(true, tenant);
  return (
    <Text size="sm">
      of{" "}
      <Anchor component={Link} to={`/operator/requests?tenant=${tenant}`} size="sm">
        {names.data?.get(tenant) ?? (names.isPending ? "…" : tenant)}
      </Anchor>
    </Text>
  );
}
