/** The tenant's plan: what it promises, what it allows, and what of that is used and held now. */

import { Badge, Box, Group, Progress, SimpleGrid, Stack, Table, Text } from "@mantine/core";
import { formatDate, formatMs } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { Stat } from "../../components/Stat";
import { ErrorState, TableSkeleton } from "../../components/states";
import { useStale } from "../../live/stale";
import {
  BUDGET_NAMES,
  BUDGET_WORDS,
  budgetParts,
  keyRows,
  type LimitRow,
  money,
  planRows,
} from "./model";
import { type Limits, useLimits } from "./queries";

export default function Page() {
  const limits = useLimits();
  const stale = useStale(limits.dataUpdatedAt);
  return (
    <>
      <PageHeader
        title="Limits"
        description="Latency targets and rate limits of your plan, with current use. Requests above a limit are rejected with status 429."
      />
      {limits.isPending && <TableSkeleton />}
      {limits.error && !limits.data && (
        <ErrorState error={limits.error} onRetry={() => limits.refetch()} />
      )}
      {limits.data && (
        <Stack>
          <Plan limits={limits.data} />
          <Uses
            title="Plan limits"
            note={
              limits.data.local
                ? "Redis is unavailable, so each server process counts separately for now."
                : "Shared by all API keys."
            }
            rows={planRows(limits.data)}
            stale={stale}
          />
          {limits.data.key && (
            <Uses
              title="Limits of this key"
              note="Applied in addition to the plan limits."
              rows={keyRows(limits.data.key)}
              stale={stale}
            />
          )}
          <Money limits={limits.data} stale={stale} />
        </Stack>
      )}
    </>
  );
}

function Plan({ limits }: { limits: Limits }) {
  return (
    <SimpleGrid cols={{ base: 2, md: 4 }}>
      <Stat label="Plan" value={limits.plan} hint={`service tiers: ${limits.tiers.join(", ")}`} />
      <Stat label="Class" value={limits.sla_class} hint="for requests without a service tier" />
      <Stat
        label="TTFT target"
        value={limits.ttft_ms === null ? "none" : formatMs(limits.ttft_ms)}
        hint="time to first token"
      />
      <Stat
        label="TPOT target"
        value={limits.tpot_ms === null ? "none" : formatMs(limits.tpot_ms)}
        hint="time per output token"
      />
    </SimpleGrid>
  );
}

interface UsesProps {
  title: string;
  note: string;
  rows: LimitRow[];
  stale: string | null;
}

const FULL = 0.9;

function Uses({ title, note, rows, stale }: UsesProps) {
  return (
    <Panel title={title} note={note} stale={stale} padding="0">
      <Scrollable label={title}>
        <Table aria-label={title} miw={560} className="numbers">
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Resource</Table.Th>
              <Table.Th ta="right">Used</Table.Th>
              <Table.Th ta="right">Limit</Table.Th>
              <Table.Th ta="right">Remaining</Table.Th>
              <Table.Th w="30%">In use</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {rows.map((row) => (
              <Table.Tr key={row.name}>
                <Table.Td>
                  <Text size="sm">{row.name}</Text>
                  <Text size="xs" c="dimmed">
                    {row.note}
                  </Text>
                </Table.Td>
                <Table.Td ta="right">{row.used}</Table.Td>
                <Table.Td ta="right">{row.limit ?? "unlimited"}</Table.Td>
                <Table.Td ta="right">{row.left ?? "–"}</Table.Td>
                <Table.Td>
                  {row.part !== null && (
                    <Progress
                      value={row.part * 100}
                      color={row.part >= 1 ? "red" : row.part >= FULL ? "yellow" : "teal"}
                      aria-label={`${row.name}: ${row.used} of ${row.limit}`}
                    />
                  )}
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Scrollable>
    </Panel>
  );
}

interface MoneyProps {
  limits: Limits;
  stale: string | null;
}

const STATE_COLORS = { ok: "teal", soft: "yellow", hard: "red" } as const;

function Money({ limits, stale }: MoneyProps) {
  const { budgets, credits } = limits;
  return (
    <Panel
      title="Budgets"
      note="Held: what running requests may still cost. Periods are in UTC."
      stale={stale}
    >
      {budgets.length === 0 && credits.length === 0 && (
        <Text size="sm">
          No budgets: neither the plan nor the key that you are signed in with has one.
        </Text>
      )}
      <Stack gap="lg">
        {budgets.map((budget) => (
          <Box key={`${budget.name} ${budget.api_key_id} ${budget.currency}`}>
            <Group justify="space-between" gap="xs" mb={6}>
              <Group gap="xs">
                <Text size="sm" fw={550} title={budget.api_key_id ?? undefined}>
                  {BUDGET_NAMES[budget.name]}
                </Text>
                <Badge color={STATE_COLORS[budget.state]}>{BUDGET_WORDS[budget.state]}</Badge>
                {!budget.binds && (
                  <Badge color="gray">does not bind: nothing is priced in {budget.currency}</Badge>
                )}
              </Group>
              <Text size="sm" className="numbers">
                {money(budget.spent, budget.currency)} spent, {money(budget.held, budget.currency)}{" "}
                held, of {money(budget.cap, budget.currency)}
              </Text>
            </Group>
            <BudgetBar budget={budget} />
            {budget.resets_at && (
              <Text size="xs" c="dimmed" mt={4}>
                resets {formatDate(budget.resets_at)}
              </Text>
            )}
          </Box>
        ))}
        {credits.map((credit) => (
          <Group key={credit.currency} justify="space-between" gap="xs">
            <Text size="sm" fw={550}>
              {BUDGET_NAMES.credit}
            </Text>
            <Text size="sm" className="numbers">
              {money(credit.balance, credit.currency)} left of{" "}
              {money(credit.granted, credit.currency)}; {money(credit.spent, credit.currency)}{" "}
              spent, {money(credit.held, credit.currency)} held
            </Text>
          </Group>
        ))}
      </Stack>
    </Panel>
  );
}

function BudgetBar({ budget }: { budget: Limits["budgets"][number] }) {
  const { spent, held } = budgetParts(budget);
  const name = BUDGET_NAMES[budget.name];
  return (
    <Progress.Root size="lg">
      <Progress.Section
        value={spent * 100}
        color={STATE_COLORS[budget.state]}
        aria-label={`${name}: spent`}
      />
      <Progress.Section value={held * 100} color="gray" aria-label={`${name}: held`} />
    </Progress.Root>
  );
}
