/** What everybody cost in a month together, and by tenant: days, forecast, budget. */

import {
  Anchor,
  Badge,
  Group,
  NativeSelect,
  Progress,
  SimpleGrid,
  Stack,
  Text,
} from "@mantine/core";
import { IconCoin } from "@tabler/icons-react";
import { useState } from "react";
import { Link } from "react-router";
import { type Column, DataTable } from "../../components/DataTable";

import { drawn, sumOf } from "../../components/decimal";
import { counted, formatCount, formatMoney } from "../../components/format";

import { Panel } from "../../components/Panel";
import { SearchField } from "../../components/SearchField";
import { useParam } from "../../components/SidePanel";
import { Sparkline } from "../../components/Sparkline";
import { Stat } from "../../components/Stat";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { TenantDot } from "../../components/TenantName";
import { monthTitle } from "../../invoices/model";
import {
  BUDGET_WORDS,
  type BudgetState,
  budgetUse,
  isMonth,
  type MonthCost,
  months,
  monthsCosts,
  type TenantCosts,
} from "./model";
import { COST_SORTS, useCosts, useForecast, useMonth } from "./queries";
import { SpendChart } from "./SpendChart";

export function CostsTab() {
  const [choices] = useState(() => months(new Date()));
  const [asked, setAsked] = useParam("month");
  const [currency, setCurrency] = useParam("currency");
  const [sorted, setSort] = useParam("sort");
  const [q] = useParam("q");
  const month = isMonth(asked) ? asked : (choices[0] ?? "");
  const sort = COST_SORTS.find((each) => each === sorted) ?? "-spend";
  const costs = useCosts({ month, q: q ?? undefined, sort, currency: currency ?? "USD" });
  const { first } = costs;
  return (
    <Stack>
      <Together month={month} isNow={month === choices[0]} start={first?.start} end={first?.end} />
      <Group gap="sm">
        <SearchField label="Search tenants" placeholder="Name or ID" />
        <NativeSelect
          aria-label="Month"
          value={month}
          data={choices.map((value, index) => ({
            value,
            label: index === 0 ? `${monthTitle(value)} to date` : monthTitle(value),
          }))}
          onChange={(event) => setAsked(event.currentTarget.value)}
        />
        <CurrencyChoice rows={costs.rows} value={currency ?? "USD"} onChange={setCurrency} />
        {first && (
          <Text ml="auto" size="sm" c="dimmed" role="status">
            {counted(first.total, "tenant")}
          </Text>
        )}
      </Group>
      {costs.isPending && <TableSkeleton rows={8} />}
      {costs.error && <ErrorState error={costs.error} onRetry={costs.refetch} />}
      {first && costs.rows.length === 0 && (
        <EmptyState icon={<IconCoin size={24} />} title="No tenants match these filters">
          Enter part of a tenant's name or ID.
        </EmptyState>
      )}
      {costs.rows.length > 0 && (
        <ByTenant
          rows={costs.rows}
          total={first?.total}
          sort={sort}
          onSort={setSort}
          more={costs.more}
        />
      )}
    </Stack>
  );
}

interface TogetherProps {
  month: string;
  isNow: boolean;
  start: string | undefined;
  end: string | undefined;
}

/** The month that runs with its forecast, one that is over from its days. */
function Together({ month, isNow, start, end }: TogetherProps) {
  const forecast = useForecast();
  const past = useMonth(start ?? "", end ?? "", !isNow && start !== undefined);
  const error = isNow ? forecast.error : past.error;
  if (error) return <ErrorState error={error} />;
  if (start === undefined || end === undefined || (isNow ? !forecast.data : !past.data))
    return <TableSkeleton rows={2} />;
  const of = isNow
    ? (forecast.data?.currencies ?? []).map((each) => ({
        ...each,
        days: monthsCosts(each.days, start, forecast.data?.as_of.slice(0, 10) ?? start),
        before: each.spent_last_month,
      }))
    : pastCosts(past.data?.data ?? [], start, end);
  if (of.length === 0)
    return (
      <EmptyState icon={<IconCoin size={24} />} title={`No spend in ${monthTitle(month)}`}>
        Priced usage of tenants appears here within a second.
      </EmptyState>
    );
  return of.map(({ currency, spent, projected, low, high, days, before }) => (
    <Panel key={currency} title={`All tenants, ${currency}`} note="Cumulative, by day (UTC)">
      <SimpleGrid cols={{ base: 1, xs: 3 }} spacing="sm" mb="sm">
        <Stat label={`Spend in ${monthTitle(month)}`} value={formatMoney(spent, currency)} />
        {isNow && (
          <Stat
            label="Forecast"
            value={projected === null ? "–" : formatMoney(projected, currency)}
            hint={
              low !== null && high !== null
                ? `80% range: ${formatMoney(low, currency)} to ${formatMoney(high, currency)}`
                : "not enough full days for a range"
            }
          />
        )}
        {before !== null && <Stat label="Previous month" value={formatMoney(before, currency)} />}
      </SimpleGrid>
      <SpendChart
        label={`Spend of all tenants, ${currency}`}
        currency={currency}
        days={days}
        start={start}
        end={end}
        projected={projected}
      />
    </Panel>
  ));
}

type Bucket = { start: string; results: { currency: string; amount: string }[] };

function pastCosts(buckets: readonly Bucket[], start: string, end: string) {
  const currencies = [
    ...new Set(buckets.flatMap(({ results }) => results.map(({ currency }) => currency))),
  ].sort();
  const last = new Date(Date.parse(`${end}T00:00:00Z`) - 864e5).toISOString().slice(0, 10);
  return currencies.map((currency) => {
    const found = buckets.flatMap(({ start: at, results }) =>
      results
        .filter((each) => each.currency === currency)
        .map(({ amount }) => ({ day: at.slice(0, 10), amount })),
    );
    const days = monthsCosts(found, start, last);
    return {
      currency,
      days,
      spent: sumOf(days),
      projected: null,
      low: null,
      high: null,
      before: null,
    };
  });
}

interface CurrencyChoiceProps {
  rows: readonly TenantCosts[];
  value: string;
  onChange: (currency: string) => void;
}

function CurrencyChoice({ rows, value, onChange }: CurrencyChoiceProps) {
  const known = new Set([value, ...rows.flatMap((row) => row.costs.map((each) => each.currency))]);
  if (known.size < 2) return null;
  return (
    <NativeSelect
      aria-label="Currency to sort spend by"
      value={value}
      data={[...known].sort()}
      onChange={(event) => onChange(event.currentTarget.value)}
    />
  );
}

const COLORS: Record<BudgetState, string> = {
  ok: "teal",
  soft: "yellow",
  "leads over": "orange",
  over: "red",
};

interface ByTenantProps {
  rows: readonly TenantCosts[];
  total: number | undefined;
  sort: string;
  onSort: (sort: string) => void;
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

function ByTenant({ rows, total, sort, onSort, more }: ByTenantProps) {
  const columns: Column<TenantCosts>[] = [
    {
      key: "name",
      header: "Tenant",
      sort: "name",
      cell: ({ id, name }) => (
        <>
          <TenantDot id={id} />{" "}
          <Anchor component={Link} to={`/operator/tenants/${id}`} size="sm" fw={550} title={name}>
            {name}
          </Anchor>
        </>
      ),
    },
    { key: "plan", header: "Plan", width: 110, cell: ({ plan }) => plan },
    {
      key: "days",
      header: "By day",
      width: 140,
      cell: ({ costs }) =>
        costs.map(({ currency, days }) => (
          <Sparkline
            key={currency}
            values={days.map(drawn)}
            label={`Spend by day in ${currency}`}
            height={costs.length > 1 ? 16 : 28}
          />
        )),
    },
    {
      key: "spend",
      header: "Spend",
      align: "right",
      sort: "-spend",
      cell: ({ costs, unrated_events }) => (
        <>
          {unrated_events > 0 && (
            <Badge color="yellow" mr={8}>
              {formatCount(unrated_events)} unpriced
            </Badge>
          )}
          {costs.length === 0 ? "–" : costs.map(spentWords).join(" · ")}
        </>
      ),
    },
    {
      key: "forecast",
      header: "Forecast",
      align: "right",
      cell: ({ costs }) => costs.map(aheadWords).join(" · ") || "–",
    },
    {
      key: "budget",
      header: "Budget",
      width: 220,
      cell: (row) => <BudgetBar row={row} />,
    },
  ];
  return (
    <DataTable
      label="Costs by tenant"
      columns={columns}
      rows={rows}
      rowKey={({ id }) => id}
      total={total}
      sort={sort}
      onSort={onSort}
      minWidth={920}
      maxHeight={640}
      rowHeight={48}
      {...more}
    />
  );
}

const spentWords = ({ amount, currency }: MonthCost) => formatMoney(amount, currency);
const aheadWords = ({ forecast, currency }: MonthCost) =>
  forecast ? formatMoney(forecast.projected, currency) : "–";

function BudgetBar({ row }: { row: TenantCosts }) {
  const use = budgetUse(row);
  if (use === null || row.budget === null) return "–";
  const words = `${BUDGET_WORDS[use.state]}: ${formatMoney(use.spent, row.budget.currency)} of ${formatMoney(row.budget.amount, row.budget.currency)}`;
  return (
    <Group gap={8} wrap="nowrap" title={words}>
      <Progress
        value={Math.min(use.part, 1) * 100}
        color={COLORS[use.state]}
        flex={1}
        miw={60}
        aria-label={words}
      />
      <Text size="xs" className="numbers">
        {formatMoney(row.budget.amount, row.budget.currency)}
      </Text>
    </Group>
  );
}
