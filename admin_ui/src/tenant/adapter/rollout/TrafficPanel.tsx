import { SimpleGrid, Text } from "@mantine/core";
import { useMemo } from "react";
import type { Schemas } from "../../../api/client";
import type { Mark } from "../../../components/chart";
import { formatCount, formatMs, formatPart } from "../../../components/format";
import { Panel } from "../../../components/Panel";
import { RangePicker, useRange } from "../../../components/range";
import { ErrorState } from "../../../components/states";
import { TimeSeries } from "../../../components/TimeSeries";
import { useStale } from "../../../live/stale";
import { actionText, type Change, type VersionSeries, versionSeries } from "./model";
import { useTraffic } from "./queries";
import { versionColor } from "./versionColor";

interface TrafficPanelProps {
  adapter: string;
  changes: readonly Change[];
}

/** Requests, errors and times of each version over time, with what was changed when. */
export function TrafficPanel({ adapter, changes }: TrafficPanelProps) {
  const range = useRange("1h");
  const { data, error, dataUpdatedAt } = useTraffic(adapter, range);
  const stale = useStale(dataUpdatedAt);
  const marks = useMemo<Mark[]>(
    () =>
      changes.map((change) => ({
        atS: Date.parse(change.at) / 1000,
        label: actionText(change.action),
        color: change.action === "rollout.roll_back" ? "var(--mantine-color-red-6)" : undefined,
      })),
    [changes],
  );
  return (
    <Panel
      title="Traffic by version"
      note="Finished requests. Dashed lines: changes of this alias."
      action={<RangePicker range={range} />}
      stale={stale}
    >
      {error && !data && <ErrorState error={error} />}
      {data && <Charts data={data} marks={marks} onBrush={range.zoom} />}
    </Panel>
  );
}

interface ChartsProps {
  data: Schemas["TimeSeriesAnswer"];
  marks: readonly Mark[];
  onBrush: (startS: number, endS: number) => void;
}

function Charts({ data, marks, onBrush }: ChartsProps) {
  const versions = useMemo(() => versionSeries(data.series), [data.series]);
  const of = (values: (version: VersionSeries) => (number | null)[]) =>
    versions.map((version) => ({
      name: version.version === null ? "Base" : `Version ${version.version}`,
      color: versionColor(version.version ?? 1),
      values: values(version),
    }));
  if (versions.length === 0)
    return (
      <Text size="sm" c="dimmed">
        No requests to this adapter finished in this period.
      </Text>
    );
  const common = {
    isNamed: true,
    times: data.times,
    marks,
    onBrush,
    sync: "versions",
    height: 150,
  };
  return (
    <SimpleGrid cols={{ base: 1, md: 3 }}>
      <TimeSeries
        {...common}
        label="Requests"
        series={of(({ requests }) => requests)}
        kind="area"
        isStacked
        format={formatCount}
      />
      <TimeSeries
        {...common}
        label="Error rate"
        series={of(({ failed }) => failed)}
        format={(part) => formatPart(part)}
      />
      <TimeSeries
        {...common}
        label="TTFT, median"
        series={of(({ ttftMs }) => ttftMs)}
        format={formatMs}
      />
    </SimpleGrid>
  );
}
