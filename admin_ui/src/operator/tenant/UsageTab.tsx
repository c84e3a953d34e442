/** This month's tokens by day and class, and what they cost by adapter and meter. */

import { Stack, Text } from "@mantine/core";
import { IconChartBar } from "@tabler/icons-react";
import { type Column, DataTable } from "../../components/DataTable";
import { formatCompact, formatCount, formatMoney } from "../../components/format";
import { Panel } from "../../components/Panel";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { TimeSeries } from "../../components/TimeSeries";
import { isMeter, METER_NAMES } from "../prices/model";
import { type AdapterCost, costsOf, tokensOf } from "./model";
import { useCostsByAdapter, useTokens } from "./queries";

const COLORS = ["teal", "blue", "orange", "grape"] as const;
const colorOf = (index: number) => {
  const name = COLORS[index % COLORS.length];
  return `light-dark(var(--mantine-color-${name}-7), var(--mantine-color-${name}-4))`;
};

export function UsageTab({ tenant }: { tenant: string }) {
  const tokens = useTokens(tenant);
  const costs = useCostsByAdapter(tenant);
  const error = tokens.error ?? costs.error;
  if (error && !costs.data) return <ErrorState error={error} onRetry={() => costs.refetch()} />;
  if (!tokens.data || !costs.data) return <TableSkeleton rows={6} />;
  const { times, classes } = tokensOf(tokens.data);
  const rows = costsOf(costs.data);
  if (rows.length === 0 && classes.length === 0)
    return (
      <EmptyState icon={<IconChartBar size={24} />} title="No usage this month">
        Tokens by day and costs by adapter appear here when the tenant sends requests.
      </EmptyState>
    );
  return (
    <Stack>
      <Panel title="Tokens per day" note="Prompt and output tokens, month to date (UTC), by class">
        <TimeSeries
          label="Tokens per day by class"
          kind="bars"
          isStacked
          isDays
          times={times}
          series={classes.map(({ name, values }, index) => ({
            name: name || "no class",
            values,
            color: colorOf(index),
          }))}
          format={formatCompact}
        />
      </Panel>
      <ByAdapter rows={rows} />
    </Stack>
  );
}

function ByAdapter({ rows }: { rows: readonly AdapterCost[] }) {
  const columns: Column<AdapterCost>[] = [
    {
      key: "adapter",
      header: "Adapter",
      cell: ({ adapter }) =>
        adapter ?? (
          <Text span c="dimmed" inherit>
            base model
          </Text>
        ),
    },
    { key: "tier", header: "Class", cell: ({ tier }) => tier || "–" },
    {
      key: "meters",
      header: "Meters",
      cell: ({ meters }) =>
        meters
          .filter(({ quantity }) => quantity > 0)
          .map(meterWords)
          .join(", "),
    },
    {
      key: "unrated",
      header: "Unpriced",
      align: "right",
      cell: ({ unrated }) => formatCount(unrated),
    },
    {
      key: "amount",
      header: "Cost",
      align: "right",
      cell: ({ amount, currency }) => formatMoney(amount, currency),
    },
  ];
  return (
    <DataTable
      label="Costs by adapter and class"
      columns={columns}
      rows={rows}
      rowKey={({ key }) => key}
      minWidth={720}
      maxHeight={480}
    />
  );
}

function meterWords({ meter, quantity }: { meter: string; quantity: number }): string {
  return `${formatCompact(quantity)} ${isMeter(meter) ? METER_NAMES[meter].label.toLowerCase() : meter}`;
}
