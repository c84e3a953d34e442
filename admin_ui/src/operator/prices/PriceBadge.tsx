import { Badge } from "@mantine/core";
import type { PriceStatus } from "./queries";

const COLORS: Record<PriceStatus, string> = { in_force: "teal", announced: "blue", ended: "gray" };
export const STATUS_NAMES: Record<PriceStatus, string> = {
  in_force: "in force",
  announced: "scheduled",
  ended: "ended",
};

export function PriceBadge({ status }: { status: PriceStatus }) {
  return <Badge color={COLORS[status]}>{STATUS_NAMES[status]}</Badge>;
}
