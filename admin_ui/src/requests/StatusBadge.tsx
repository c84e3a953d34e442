import { Badge, Tooltip } from "@mantine/core";
import { endWord, type RequestItem } from "./model";

const COLORS = { completed: "teal", aborted: "yellow", failed: "red" } as const;
const REASONS: Record<string, string> = {
  stop: "Finished: end of output or stop sequence",
  length: "Stopped at max_tokens",
  abort: "The client disconnected",
  error: "The request failed",
};

interface StatusBadgeProps {
  status: RequestItem["status"];
  reason: string;
  kind: string;
}

/** How a request ended. */
export function StatusBadge({ status, reason, kind }: StatusBadgeProps) {
  const word = endWord(status, reason, kind);
  return (
    <Tooltip label={word === "embedded" ? "All inputs were embedded" : (REASONS[reason] ?? reason)}>
      <Badge color={COLORS[status]} w="max-content">
        {word}
      </Badge>
    </Tooltip>
  );
}
