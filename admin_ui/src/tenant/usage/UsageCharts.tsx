import { Stack } from "@mantine/core";
import { formatCompact, formatCount } from "../../components/format";
import { Panel } from "../../components/Panel";
import { TimeSeries } from "../../components/TimeSeries";
import type { Group, Measure, View } from "./model";

interface UsageChartsProps {
  view: View;
  measure: Measure;
  by: Group;
  isDays: boolean;
  stale: string | null;
  /** A bar leads to the requests behind it, a range that is drawn to those in it. */
  onPick: (startS: number) => void;
  onBrush: (startS: number, endS: number) => void;
}

const NAMES = { cost: "Cost", tokens: "Tokens", requests: "Requests" } as const;
const BY: Record<Group, string> = {
  adapter: " by adapter",
  adapter_version: " by version",
  api_key: " by key",
  tier: " by class",
  kind: " by kind",
  model: " by model",
  none: "",
};

/** Bars by day or hour; of money a chart for each currency, for they cannot be added. */
export function UsageCharts({
  view,
  measure,
  by,
  isDays,
  stale,
  onPick,
  onBrush,
}: UsageChartsProps) {
  return (
    <Stack gap="md" mb="md">
      {view.charts.map(({ key, series }) => {
        const name = `${NAMES[measure]}${BY[by]}`;
        const title = measure === "cost" && view.charts.length > 1 ? `${name}, ${key}` : name;
        return (
          <Panel
            key={key}
            title={title}
            note="Select a bar, or drag across several, to see the requests."
            stale={stale}
          >
            <TimeSeries
              label={title}
              kind="bars"
              isStacked
              isDays={isDays}
              times={view.times}
              series={series}
              height={240}
              format={measure === "cost" ? (value) => shortMoney(value, key) : formatCompact}
              onPick={(index) => onPick(view.times[index] ?? 0)}
              onBrush={onBrush}
            />
          </Panel>
        );
      })}
    </Stack>
  );
}

/** For an axis: three digits are all that can be seen there. */
function shortMoney(value: number, currency: string): string {
  const digits = value === 0 ? "0" : Number(value.toPrecision(3)).toString();
  const text = value >= 1000 ? formatCount(Math.round(value)) : digits;
  return currency === "USD" ? `$${text}` : currency === "EUR" ? `€${text}` : `${text} ${currency}`;
}
