import { Card, Text, Tooltip } from "@mantine/core";
import type { ReactNode } from "react";
import classes from "./Stat.module.css";

interface StatProps {
  label: string;
  value: ReactNode;
  hint?: string;
  color?: string;
  title?: string;
}

/** One figure with its name. `title` gives the exact value when `value` is shortened. */
export function Stat({ label, value, hint, color, title }: StatProps) {
  return (
    <Card padding="md">
      <Text size="xs" c="dimmed" className={classes.label}>
        {color && <span className={classes.dot} style={{ background: color }} aria-hidden />}
        {label}
      </Text>
      <Tooltip label={title} disabled={!title} position="bottom-start">
        <Text className={classes.value}>{value}</Text>
      </Tooltip>
      {hint && (
        <Text size="xs" c="dimmed">
          {hint}
        </Text>
      )}
    </Card>
  );
}
