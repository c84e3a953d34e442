import { Group, Text } from "@mantine/core";
import { at } from "../api/base";

export function Logo({ size = 28 }: { size?: number }) {
  return (
    <Group gap={10} wrap="nowrap">
      <img src={at("/favicon.svg")} width={size} height={size} alt="" />
      <Text fw={650} fz="lg" style={{ letterSpacing: "-0.01em" }}>
        Tenora
      </Text>
    </Group>
  );
}
