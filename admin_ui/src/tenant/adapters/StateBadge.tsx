import { Badge, Loader, Tooltip } from "@mantine/core";
import { isPending, type Tier, type VersionState } from "./model";

const STATES: Record<VersionState, { color: string; meaning: string }> = {
  quarantined: { color: "gray", meaning: "Stored, waiting to be checked" },
  validating: { color: "blue", meaning: "Being checked against the base model" },
  active: { color: "teal", meaning: "Ready: requests may use it" },
  rejected: { color: "red", meaning: "Cannot be used; see the report for the reasons" },
  deprecated: { color: "yellow", meaning: "Still served, but no longer recommended" },
  revoked: { color: "gray", meaning: "Deleted: requests get status 404" },
};

export function StateBadge({ state }: { state: VersionState }) {
  const { color, meaning } = STATES[state];
  return (
    <Tooltip label={meaning}>
      <Badge
        color={color}
        miw="max-content"
        leftSection={isPending(state) ? <Loader size={10} color={color} /> : undefined}
      >
        {state}
      </Badge>
    </Tooltip>
  );
}

const TIERS: Record<Tier, { color: string; name: string; meaning: string }> = {
  device: {
    color: "teal",
    name: "device",
    meaning: "In device memory: requests start immediately",
  },
  host: {
    color: "blue",
    name: "host",
    meaning: "In host memory: copied to the device on first use",
  },
  shared: { color: "grape", name: "shared", meaning: "In the shared cache: loaded on first use" },
  store: {
    color: "gray",
    name: "store",
    meaning: "In the object store: the first request needs a cold load",
  },
};

export function tierMeaning(tier: Tier): string {
  return TIERS[tier].meaning;
}

export function TierBadge({ tier }: { tier: Tier | null }) {
  if (tier === null) return <span>–</span>;
  const { color, name, meaning } = TIERS[tier];
  return (
    <Tooltip label={meaning}>
      <Badge color={color} variant="dot" miw="max-content">
        {name}
      </Badge>
    </Tooltip>
  );
}
