/** The service gap of each class over time, below the line that it is proven to stay below. */

import { SimpleGrid, Text } from "@mantine/core";
import { useMemo } from "react";
import { formatCompact } from "../../components/format";
import { TimeSeries } from "../../components/TimeSeries";
import { type ClassFairness, gapSeries } from "./model";

interface GapProps {
  classes: readonly ClassFairness[];
  startS: number;
  endS: number;
  onBrush: (startS: number, endS: number) => void;
}

export function Gap({ classes, ...more }: GapProps) {
  const drawn = classes.filter(({ gaps }) => gaps.length > 0);
  if (drawn.length === 0) {
    return (
      <Text size="sm" c="dimmed">
        No two tenants waited at the same time in this period.
      </Text>
    );
  }
  return (
    <SimpleGrid cols={{ base: 1, lg: Math.min(drawn.length, 2) }} spacing="xl">
      {drawn.map((each) => (
        <OfClass key={each.class} of={each} {...more} />
      ))}
    </SimpleGrid>
  );
}

type OfClassProps = Omit<GapProps, "classes"> & { of: ClassFairness };

function OfClass({ of, startS, endS, onBrush }: OfClassProps) {
  const { times, gap, bound } = useMemo(
    () => gapSeries(of.gaps, startS, endS),
    [of.gaps, startS, endS],
  );
  const series = useMemo(
    () => [
      { name: `Gap, ${of.class}`, values: gap, color: "var(--mantine-color-teal-6)" },
      { name: "Bound", values: bound, color: "var(--mantine-color-orange-6)" },
    ],
    [of.class, gap, bound],
  );
  return (
    <TimeSeries
      label={`Service gap in class ${of.class}`}
      times={times}
      series={series}
      format={formatCompact}
      height={180}
      onBrush={onBrush}
      sync="fairness"
    />
  );
}
