import { Badge, Tooltip } from "@mantine/core";
import type { RequestItem } from "./model";

const COLORS = { completed: "teal", aborted: "yellow", failed: "red" } as const;
const REASONS: Record<string, string> = {
  stop: "Finished: end of output or stop sequence",
  length: "Stopped at max_tokens",
  abort: "The client disconnected",
  error: "The request failed",
};

/** How a request ended. */
export function StatusBadge({ status, reason }: { status: RequestItem["status"]; reason: string }) {
  return (
    <Tooltip label={REASONS[reason] ?? reason}>
      <Badge color={COLORS[status]} w="max-content">
        {reason === "length" ? "max tokens" : status}
      </Badge>
    </Tooltip>
  );
}
