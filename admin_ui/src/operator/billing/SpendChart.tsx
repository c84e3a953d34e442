import { drawn } from "../../components/decimal";
import { formatMoney } from "../../components/format";
import { TimeSeries } from "../../components/TimeSeries";
import { curveOf } from "./model";

interface SpendChartProps {
  label: string;
  currency: string;
  /** Of each day from the month's first on. */
  days: readonly string[];
  start: string;
  end: string;
  projected: string | null;
  budget?: string | null;
  height?: number;
}

const COLOR = "light-dark(var(--mantine-color-teal-7), var(--mantine-color-teal-4))";
const AHEAD = "light-dark(var(--mantine-color-blue-6), var(--mantine-color-blue-4))";

/** What a month adds up to, what it leads to, and the line that a budget draws. One currency. */
export function SpendChart(props: SpendChartProps) {
  const { label, currency, days, start, end, projected, budget, height = 200 } = props;
  const { times, spent, ahead } = curveOf(days, start, end, projected);
  return (
    <TimeSeries
      label={label}
      kind="line"
      isDays
      times={times}
      height={height}
      format={(value) => formatMoney(short(value), currency)}
      series={[
        { name: `Spend, ${currency}`, values: spent, color: COLOR },
        ...(projected === null ? [] : [{ name: "Forecast", values: ahead, color: AHEAD }]),
      ]}
      target={budget ? { value: drawn(budget), label: "budget" } : undefined}
    />
  );
}

/** For the axis and the cursor: four digits, never in powers of ten. */
function short(value: number): string {
  if (value === 0) return "0";
  const places = 3 - Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.max(0, Math.min(12, places)));
}
