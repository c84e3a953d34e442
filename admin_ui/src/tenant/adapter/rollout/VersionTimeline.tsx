import { Badge, Text } from "@mantine/core";
import type { CSSProperties } from "react";
import type { Schemas } from "../../../api/client";
import { formatDate } from "../../../components/format";
import { Panel } from "../../../components/Panel";
import { Scrollable } from "../../../components/Scrollable";
import type { Target } from "./model";
import classes from "./rollout.module.css";
import { versionColor } from "./versionColor";

interface VersionTimelineProps {
  versions: readonly Schemas["AdapterVersion"][];
  targets: readonly Target[];
}

const COLORS: Record<string, string> = {
  active: "teal",
  rejected: "red",
  deprecated: "yellow",
  revoked: "gray",
};

/** The versions in the order they came, with their state and their part of this alias. */
export function VersionTimeline({ versions, targets }: VersionTimelineProps) {
  const ordered = [...versions].sort((a, b) => a.version - b.version);
  return (
    <Panel title="Versions" note="In order of upload">
      <Scrollable label="Timeline of versions" className={classes.line}>
        {ordered.map(({ version, state, created_at }) => {
          const weight = targets.find((target) => target.version === version)?.weight ?? 0;
          return (
            <div
              key={version}
              className={classes.version}
              style={{ "--version": versionColor(version) } as CSSProperties}
            >
              <Text size="sm" fw={600}>
                Version {version}
              </Text>
              <Badge color={COLORS[state] ?? "blue"} mt={2}>
                {state}
              </Badge>
              <Text size="xs" c="dimmed" mt={4}>
                {formatDate(created_at)}
              </Text>
              <Text size="xs" c="dimmed">
                {weight > 0 ? `${weight}% of requests` : "no requests"}
              </Text>
            </div>
          );
        })}
      </Scrollable>
    </Panel>
  );
}
