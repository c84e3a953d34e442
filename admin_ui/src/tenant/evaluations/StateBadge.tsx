import { Badge } from "@mantine/core";
import type { Evaluation } from "./model";

const COLORS: Record<Evaluation["state"], string> = {
  queued: "gray",
  running: "blue",
  completed: "teal",
  failed: "red",
  cancelled: "gray",
};

export function StateBadge({ state }: { state: Evaluation["state"] }) {
  return <Badge color={COLORS[state]}>{state}</Badge>;
}
