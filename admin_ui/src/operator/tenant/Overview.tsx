/** What a tenant spends and leads to, under which terms, and what changed lately. */

import { Anchor, Group, SimpleGrid, Stack, Table, Text } from "@mantine/core";
import { IconCoin } from "@tabler/icons-react";
import { Link } from "react-router";
import { useIsRole } from "../../api/roles";
import { formatCount, formatDate, formatMoney } from "../../components/format";
import { Money } from "../../components/Money";
import { Panel } from "../../components/Panel";
import { Stat } from "../../components/Stat";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { useAccountBudget } from "../../tenant/budget/queries";
import { eventWords } from "../../tenant/overview/model";
import { BUDGET_WORDS, budgetUse, type TenantCosts } from "../billing/model";
import { useTenantCosts } from "../billing/queries";
import { SpendChart } from "../billing/SpendChart";
import { shownIn } from "../plans/currency";
import { fieldsOf, NUMBERS, type NumberField } from "../plans/model";
import { usePlans } from "../plans/queries";
import { scopeWords } from "../prices/model";
import { PriceBadge } from "../prices/PriceBadge";
import { usePrices } from "../prices/queries";
import type { Tenant } from "../tenants/queries";
import { useEvents } from "./queries";

export function Overview({ tenant }: { tenant: Tenant }) {
  const costs = useTenantCosts(tenant.id);
  const row = costs.data?.data[0];
  return (
    <Stack>
      {costs.isPending && <TableSkeleton />}
      {costs.error && !costs.data && (
        <ErrorState error={costs.error} onRetry={() => costs.refetch()} />
      )}
      {row && costs.data && <Spend row={row} start={costs.data.start} end={costs.data.end} />}
      <SimpleGrid cols={{ base: 1, lg: 2 }}>
        <Terms tenant={tenant} />
        <Stack>
          <OwnPrices tenant={tenant} />
          <Lately tenant={tenant} />
        </Stack>
      </SimpleGrid>
    </Stack>
  );
}

function Spend({ row, start, end }: { row: TenantCosts; start: string; end: string }) {
  const use = budgetUse(row);
  const projected = row.costs.flatMap(({ currency, forecast }) =>
    forecast ? [{ currency, amount: forecast.projected }] : [],
  );
  return (
    <>
      <SimpleGrid cols={{ base: 1, xs: 2, lg: 4 }} spacing="sm">
        <Stat label="Spend this month" value={<Money of={row.costs} />} />
        <Stat
          label="Forecast"
          value={<Money of={projected} />}
          hint={
            projected.length > 0 ? "based on the last days" : "needs at least one full day of usage"
          }
        />
        <Stat
          label="Plan budget"
          value={row.budget ? formatMoney(row.budget.amount, row.budget.currency) : "none"}
          hint={use ? BUDGET_WORDS[use.state] : undefined}
        />
        <Stat
          label="Events without a price"
          value={formatCount(row.unrated_events)}
          hint="not included in any amount"
        />
      </SimpleGrid>
      {row.costs.length === 0 ? (
        <EmptyState icon={<IconCoin size={24} />} title="No spend this month">
          A chart of the daily spend appears here when the tenant has priced usage.
        </EmptyState>
      ) : (
        row.costs.map(({ currency, days, forecast }) => (
          <Panel
            key={currency}
            title={row.costs.length > 1 ? `Cost this month in ${currency}` : "Cost this month"}
            note="Cumulative, by day (UTC)"
          >
            <SpendChart
              label={`Cumulative spend in ${currency} by day`}
              currency={currency}
              days={days}
              start={start}
              end={end}
              projected={forecast?.projected ?? null}
              budget={row.budget?.currency === currency ? row.budget.amount : null}
            />
          </Panel>
        ))
      )}
    </>
  );
}

const SHOWN: readonly NumberField[] = [
  "ttft_ms",
  "tpot_ms",
  "weight",
  "memory_share",
  "requests_per_min",
  "tokens_per_min",
  "parallel_requests",
  "adapters",
  "adapter_bytes",
  "budget",
  "budget_day",
];

function Terms({ tenant }: { tenant: Tenant }) {
  const plans = usePlans();
  const plan = plans.rows.find(({ name }) => name === tenant.plan);
  const fields = plan && fieldsOf(plan);
  const currencies = useAccountBudget(tenant.id).data?.currencies ?? plan?.currencies ?? [];
  return (
    <Panel
      title={`Plan ${tenant.plan}`}
      action={
        <Anchor component={Link} to={`/operator/plans?plan=${tenant.plan}`} size="sm">
          Open plan
        </Anchor>
      }
    >
      {plans.isPending && <TableSkeleton />}
      {plans.error && <ErrorState error={plans.error} onRetry={plans.refetch} />}
      {fields && (
        <Table aria-label="Plan terms" verticalSpacing={6} horizontalSpacing={0}>
          <Table.Tbody>
            <Term label="Service class" value={fields.sla_class} />
            {SHOWN.map((field) => (
              <Term
                key={field}
                label={NUMBERS[field].label}
                value={shownIn(field, fields[field], currencies)}
              />
            ))}
            <Term label="Trust group" value={tenant.trust_group ?? "none"} />
            <Term label="Prepaid" value={tenant.prepaid ? "yes" : "no"} />
          </Table.Tbody>
        </Table>
      )}
    </Panel>
  );
}

function Term({ label, value }: { label: string; value: string }) {
  return (
    <Table.Tr>
      <Table.Th scope="row" fw={400} c="dimmed">
        {label}
      </Table.Th>
      <Table.Td ta="right">{value}</Table.Td>
    </Table.Tr>
  );
}

function OwnPrices({ tenant }: { tenant: Tenant }) {
  const prices = usePrices({ tenant: tenant.id });
  const holding = prices.rows.filter(({ status }) => status !== "ended");
  return (
    <Panel
      title="Tenant-specific prices"
      note="These override the plan's prices."
      action={
        <Anchor component={Link} to={`/operator/prices?tenant=${tenant.id}`} size="sm">
          All versions
        </Anchor>
      }
    >
      {prices.error && <ErrorState error={prices.error} onRetry={prices.refetch} />}
      {prices.first && holding.length === 0 && (
        <Text size="sm" c="dimmed">
          None. The prices of the plan or the general list apply.
        </Text>
      )}
      <Stack gap={6}>
        {holding.map((price) => (
          <Group key={price.id} justify="space-between" gap="xs">
            <Anchor component={Link} to={`/operator/prices?price=${price.id}`} size="sm">
              {scopeWords(price)}, list {price.no}
            </Anchor>
            <PriceBadge status={price.status} />
          </Group>
        ))}
      </Stack>
    </Panel>
  );
}

function Lately({ tenant }: { tenant: Tenant }) {
  const events = useEvents(tenant.id);
  const isReader = useIsRole("operator", "read_only");
  return (
    <Panel
      title="Recent events"
      action={
        <Group gap="sm">
          <Anchor component={Link} to={`/operator/requests?tenant=${tenant.id}`} size="sm">
            Requests
          </Anchor>
          {isReader && (
            <Anchor component={Link} to={`/operator/audit?tenant=${tenant.id}`} size="sm">
              Audit log
            </Anchor>
          )}
        </Group>
      }
    >
      {events.error && !events.data && (
        <ErrorState error={events.error} onRetry={() => events.refetch()} />
      )}
      {events.data?.data.length === 0 && (
        <Text size="sm" c="dimmed">
          No events yet.
        </Text>
      )}
      <Stack gap={6}>
        {events.data?.data.map((event) => (
          <Group key={event.id} justify="space-between" gap="xs">
            <Text size="sm" title={event.type}>
              {eventWords(event)}
            </Text>
            <Text size="sm" c="dimmed" className="numbers">
              {formatDate(event.created_at)}
            </Text>
          </Group>
        ))}
      </Stack>
    </Panel>
  );
}
