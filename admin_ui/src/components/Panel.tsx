import { Box, Card, Group, Text, Title } from "@mantine/core";
import type { ReactNode } from "react";
import classes from "./Panel.module.css";

interface PanelProps {
  title: string;
  /** Below the title: what is shown, of when, in which unit. */
  note?: ReactNode;
  action?: ReactNode;
  children: ReactNode;
  /** What is shown is older than it should be; the reader has to see that. */
  stale?: string | null;
  padding?: string;
}

/** A part of a page with a name. */
export function Panel({ title, note, action, children, stale, padding = "md" }: PanelProps) {
  return (
    <Card component="section" p={0} aria-label={title} className={classes.panel}>
      <Group justify="space-between" gap="sm" px="md" pt="sm" pb={padding === "0" ? "sm" : 4}>
        <Box miw={0}>
          <Title order={2} size="h3">
            {title}
          </Title>
          {note && (
            <Text size="xs" c="dimmed">
              {note}
            </Text>
          )}
        </Box>
        {(stale || action) && (
          <Group gap="xs">
            {stale && (
              <Text size="xs" c="orange" fw={550}>
                {stale}
              </Text>
            )}
            {action}
          </Group>
        )}
      </Group>
      <Box p={padding} className={stale ? classes.stale : undefined}>
        {children}
      </Box>
    </Card>
  );
}
