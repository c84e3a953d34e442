import { Badge } from "@mantine/core";

export function TenantStatus({ status }: { status: "active" | "suspended" }) {
  return <Badge color={status === "active" ? "teal" : "yellow"}>{status}</Badge>;
}
