import { Badge } from "@mantine/core";
import type { Tenant } from "./queries";

export function TenantStatus({
  tenant,
}: {
  tenant: Pick<Tenant, "status" | "deleted_at" | "erased_at">;
}) {
  if (tenant.erased_at) return <Badge color="gray">erased</Badge>;
  if (tenant.deleted_at) return <Badge color="red">deleted</Badge>;
  const { status } = tenant;
  return <Badge color={status === "active" ? "teal" : "yellow"}>{status}</Badge>;
}
