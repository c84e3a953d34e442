/** The last hour: pages by kind, and a slider that leads back to the arena of a moment. */

import { Button, Group, Slider, Text } from "@mantine/core";
import { useMemo } from "react";
import type { Schemas } from "../../api/client";
import { formatClock, formatCount } from "../../components/format";
import { Panel } from "../../components/Panel";
import { nearest } from "../../components/series";
import { TimeSeries } from "../../components/TimeSeries";

interface TimeBarProps {
  samples: readonly Schemas["PageSample"][];
  at: number | null;
  onAt: (at: number | null) => void;
}

export function clock(atS: number): string {
  return formatClock(atS);
}

export function TimeBar({ samples, at, onAt }: TimeBarProps) {
  const times = useMemo(() => samples.map((sample) => sample.at), [samples]);
  const series = useMemo(
    () => [
      { name: "Live KV", color: "var(--memory-live)", values: samples.map((each) => each.live_kv) },
      {
        name: "Adapter",
        color: "var(--memory-adapter)",
        values: samples.map((each) => each.adapter),
      },
      {
        name: "Cached KV",
        color: "var(--memory-cached)",
        values: samples.map((each) => each.cached_kv),
      },
    ],
    [samples],
  );
  const marks = useMemo(
    () => (at === null ? [] : [{ atS: at, label: "shown", color: "var(--memory-leaving)" }]),
    [at],
  );
  const last = times.length - 1;
  return (
    <Panel
      title="The last hour"
      note="One sample every ten seconds, kept across restarts."
      action={
        at !== null && (
          <Button size="xs" variant="light" onClick={() => onAt(null)}>
            Show current state
          </Button>
        )
      }
    >
      {last < 1 ? (
        <Text size="sm" c="dimmed">
          The first samples appear within 30 seconds after a worker has started.
        </Text>
      ) : (
        <>
          <TimeSeries
            label="Pages by kind, last hour"
            times={times}
            series={series}
            kind="area"
            isStacked
            height={150}
            format={formatCount}
            marks={marks}
          />
          <Group gap="sm" wrap="nowrap" mt="xs">
            <Text size="xs" c="dimmed" className="numbers">
              {clock(times[0] ?? 0)}
            </Text>
            <Slider
              flex={1}
              size="sm"
              min={0}
              max={last}
              value={at === null ? last : nearest(times, at)}
              label={(index) => clock(times[index] ?? 0)}
              thumbLabel="Time shown"
              onChange={(index) => onAt(index === last ? null : (times[index] ?? null))}
            />
            <Text size="xs" c="dimmed" className="numbers">
              now
            </Text>
          </Group>
        </>
      )}
    </Panel>
  );
}
