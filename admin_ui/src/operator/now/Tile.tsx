import { Anchor, Box, Group, Text } from "@mantine/core";
import { Link } from "react-router";
import { Sparkline } from "../../components/Sparkline";
import type { Figure } from "./model";
import classes from "./Tile.module.css";

const COLORS = {
  good: "var(--tenora-met)",
  fair: "var(--tenora-close)",
  bad: "var(--tenora-missed)",
} as const;

/** One figure as it is, and how it was over the last hour; `to` leads to what is behind it. */
export function Tile({ figure, to }: { figure: Figure; to?: string }) {
  const { label, value, hint, help, values, tone } = figure;
  return (
    <Box component="section" aria-label={label} className={classes.tile}>
      <Text size="xs" c="dimmed">
        {to === undefined ? (
          label
        ) : (
          <Anchor component={Link} to={to} inherit>
            {label}
          </Anchor>
        )}
      </Text>
      <Group justify="space-between" align="flex-end" wrap="nowrap" gap="sm">
        <Text className={classes.value}>
          {tone && (
            <span className={classes.dot} style={{ background: COLORS[tone] }} aria-hidden />
          )}
          {value}
        </Text>
        <Box className={classes.shape}>
          {values.some((each) => each !== null) && (
            <Sparkline values={values} label={`${label}, last hour`} />
          )}
        </Box>
      </Group>
      <Text size="xs" c="dimmed" className="numbers" title={help}>
        {hint}
      </Text>
    </Box>
  );
}
