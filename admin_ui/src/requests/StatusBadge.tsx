import { Badge, Tooltip } from "@mantine/core";
import { endWord, type RequestItem } from "./model";

const COLORS = {
  completed: "teal",
  aborted: "yellow",
  failed: "red",
  incomplete: "gray",
} as const;
const REASONS: Record<string, string> = {
  stop: "Finished: end of output or stop sequence",
  length: "Stopped at max_tokens",
  abort: "The client disconnected",
  error: "The request failed",
};

const WORDS: Record<string, string> = {
  embedded: "All inputs were embedded",
  incomplete: "Not all of its choices have ended",
};

interface StatusBadgeProps {
  status: RequestItem["status"];
  reason: string;
  kind: string;
}

/** How a request ended. */
export function StatusBadge({ status, reason, kind }: StatusBadgeProps) {
  const word = endWord(status, reason, kind);
  const said = WORDS[word] ?? REASONS[reason] ?? reason;
  return (
    <Tooltip label={said}>
      <Badge color={COLORS[status]} w="max-content">
        {word}
      </Badge>
    </Tooltip>
  );
}
