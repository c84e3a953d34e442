import { Badge, Loader, Tooltip } from "@mantine/core";
import { isPending, type VersionState } from "./queries";

const STATES: Record<VersionState, { color: string; meaning: string }> = {
  quarantined: { color: "gray", meaning: "Stored, waiting to be checked" },
  validating: { color: "blue", meaning: "Being checked against the base model" },
  active: { color: "teal", meaning: "Ready: requests may use it" },
  rejected: { color: "red", meaning: "Not usable; open it to see the reasons" },
  deprecated: { color: "yellow", meaning: "Still served, no longer recommended" },
  revoked: { color: "gray", meaning: "Deleted: requests get 404" },
};

export function StateBadge({ state }: { state: VersionState }) {
  const { color, meaning } = STATES[state];
  return (
    <Tooltip label={meaning}>
      <Badge
        color={color}
        leftSection={isPending(state) ? <Loader size={10} color={color} /> : undefined}
      >
        {state}
      </Badge>
    </Tooltip>
  );
}
