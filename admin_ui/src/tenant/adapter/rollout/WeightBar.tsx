import { Group, Text } from "@mantine/core";
import type { Target } from "./model";
import classes from "./rollout.module.css";
import { versionColor } from "./versionColor";

/** The parts of an alias' requests that go to each version. */
export function WeightBar({ targets }: { targets: readonly Target[] }) {
  const shown = [...targets].filter(({ weight }) => weight > 0);
  if (shown.length === 0)
    return (
      <Text size="sm" c="dimmed">
        No version serves this name.
      </Text>
    );
  return (
    <Group gap={2} wrap="nowrap" className={classes.bar}>
      {shown.map(({ version, weight }) => (
        <div
          key={version}
          className={classes.part}
          style={{ flexGrow: weight, background: versionColor(version) }}
          title={`version ${version}: ${weight}%`}
        >
          v{version} {weight}%
        </div>
      ))}
    </Group>
  );
}
