/** What a month took and what it costs. Sums of money are the server's own, shown as they come. */

import {
  ActionIcon,
  Alert,
  Badge,
  Card,
  Group,
  SimpleGrid,
  Skeleton,
  Stack,
  Table,
  Text,
  Title,
} from "@mantine/core";
import { IconChartBar, IconChevronLeft, IconChevronRight } from "@tabler/icons-react";
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { formatCompact, formatCount, formatMoney } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Stat } from "../../components/Stat";
import { EmptyState, ErrorState } from "../../components/states";
import { TimeSeries } from "../../components/TimeSeries";
import { type AdapterRow, adapterRows, dayRows, type Month, monthOf, shift, title } from "./month";
import { type MonthUsage, useMonthUsage } from "./queries";

const COLORS = {
  Uncached: "var(--mantine-color-indigo-5)",
  Cached: "var(--mantine-color-indigo-2)",
  Output: "var(--mantine-color-teal-6)",
} as const;

export default function Page() {
  const [month, setMonth] = useState<Month>(() => monthOf(new Date()));
  const usage = useMonthUsage(month);
  return (
    <>
      <PageHeader
        title="Usage and cost"
        description="Tokens by day and what they cost, by the prices in force when they were used. Months are UTC."
        action={<MonthPicker month={month} onChange={setMonth} />}
      />
      {usage.isPending && <UsageSkeleton />}
      {usage.error && !usage.data && (
        <ErrorState error={usage.error} onRetry={() => usage.refetch()} />
      )}
      {usage.data && <MonthView month={month} usage={usage.data} />}
    </>
  );
}

function MonthPicker({ month, onChange }: { month: Month; onChange: (month: Month) => void }) {
  const now = monthOf(new Date());
  const current = month.year === now.year && month.month === now.month;
  return (
    <Group gap={4}>
      <ActionIcon
        variant="default"
        size="lg"
        aria-label="Previous month"
        onClick={() => onChange(shift(month, -1))}
      >
        <IconChevronLeft size={18} />
      </ActionIcon>
      <Text w={150} ta="center" fw={550} aria-live="polite">
        {title(month)}
      </Text>
      <ActionIcon
        variant="default"
        size="lg"
        aria-label="Next month"
        disabled={current}
        onClick={() => onChange(shift(month, 1))}
      >
        <IconChevronRight size={18} />
      </ActionIcon>
    </Group>
  );
}

function UsageSkeleton() {
  return (
    <Stack aria-busy="true" aria-label="Loading">
      <SimpleGrid cols={{ base: 2, md: 4 }}>
        {["cost", "uncached", "cached", "output"].map((name) => (
          <Skeleton key={name} height={92} radius="md" />
        ))}
      </SimpleGrid>
      <Skeleton height={320} radius="md" />
    </Stack>
  );
}

function MonthView({ month, usage }: { month: Month; usage: MonthUsage }) {
  const { total, cost } = usage;
  if (!total || total.requests === 0)
    return (
      <EmptyState icon={<IconChartBar size={24} />} title={`Nothing was used in ${title(month)}`}>
        Send a request, or ask something in the playground: it appears here within seconds.
      </EmptyState>
    );
  const days = dayRows(month, usage.days);
  return (
    <Stack>
      <Totals total={total} cost={cost} />
      {cost && cost.unrated_events > 0 && (
        <Alert color="yellow" title="Some usage has no price yet">
          {formatCount(cost.unrated_events)} requests are not in the cost above, because no price is
          set for them.
        </Alert>
      )}
      <Card>
        <Title order={2} mb="md">
          Tokens by day
        </Title>
        <TimeSeries
          label="Tokens by day"
          times={days.map((_, day) => Date.UTC(month.year, month.month, day + 1) / 1000)}
          series={[
            {
              name: "Prompt, uncached",
              color: COLORS.Uncached,
              values: days.map((d) => d.Uncached),
            },
            { name: "Prompt, cached", color: COLORS.Cached, values: days.map((d) => d.Cached) },
            { name: "Output", color: COLORS.Output, values: days.map((d) => d.Output) },
          ]}
          kind="bars"
          isStacked
          height={280}
        />
      </Card>
      <AdapterTable rows={adapterRows(usage.byAdapter, usage.costByAdapter)} />
    </Stack>
  );
}

interface TotalsProps {
  total: Schemas["UsageResult"];
  cost: Schemas["CostResult"] | null;
}

function Totals({ total, cost }: TotalsProps) {
  const tokens = (count: number) => ({
    value: formatCompact(count),
    title: formatCount(count),
  });
  return (
    <SimpleGrid cols={{ base: 1, xs: 2, md: 4 }}>
      <Stat
        label="Cost so far"
        value={
          <span data-testid="total-cost">
            {cost ? formatMoney(cost.amount, cost.currency) : formatMoney("0")}
          </span>
        }
        hint={`${formatCount(total.requests)} ${total.requests === 1 ? "request" : "requests"}`}
      />
      <Stat
        label="Prompt tokens, uncached"
        color={COLORS.Uncached}
        {...tokens(total.uncached_tokens)}
      />
      <Stat label="Prompt tokens, cached" color={COLORS.Cached} {...tokens(total.cached_tokens)} />
      <Stat label="Output tokens" color={COLORS.Output} {...tokens(total.output_tokens)} />
    </SimpleGrid>
  );
}

function AdapterTable({ rows }: { rows: AdapterRow[] }) {
  return (
    <Card p={0}>
      <Title order={2} p="lg" pb="xs">
        By adapter
      </Title>
      <Table.ScrollContainer minWidth={640} type="native">
        <Table aria-label="Usage by adapter">
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Adapter</Table.Th>
              <Table.Th ta="right">Requests</Table.Th>
              <Table.Th ta="right">Uncached</Table.Th>
              <Table.Th ta="right">Cached</Table.Th>
              <Table.Th ta="right">Output</Table.Th>
              <Table.Th ta="right">Cost</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {rows.map(({ key, adapter, usage, cost }) => (
              <Table.Tr key={key}>
                <Table.Td>{adapter ?? <Badge color="gray">base model</Badge>}</Table.Td>
                <Table.Td ta="right">{formatCount(usage?.requests ?? 0)}</Table.Td>
                <Table.Td ta="right">{formatCount(usage?.uncached_tokens ?? 0)}</Table.Td>
                <Table.Td ta="right">{formatCount(usage?.cached_tokens ?? 0)}</Table.Td>
                <Table.Td ta="right">{formatCount(usage?.output_tokens ?? 0)}</Table.Td>
                <Table.Td ta="right">
                  {cost ? formatMoney(cost.amount, cost.currency) : "not priced"}
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Table.ScrollContainer>
    </Card>
  );
}
