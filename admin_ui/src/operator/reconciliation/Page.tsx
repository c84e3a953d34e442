/** Whether the books agree, layer by layer: the last proof, every run, and the canary. */

import { Anchor, Badge, Button, Group, SimpleGrid, Stack, Table, Text } from "@mantine/core";
import { IconScale } from "@tabler/icons-react";
import type { Schemas } from "../../api/client";
import { type Column, DataTable } from "../../components/DataTable";
import { counted, formatCount, formatDate, formatMs } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { SidePanel, useParam } from "../../components/SidePanel";
import { Stat } from "../../components/Stat";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { useWaiting } from "../billing/queries";
import { TenantOf } from "../TenantOf";
import { AskForm } from "./AskForm";
import { differencesIn, type Run, scopeWords, secondsOf, verdictOf, waitingWords } from "./model";
import { useRuns } from "./queries";
import { RunBadge, RunDetails } from "./RunDetails";

/** What the address calls the form that asks for a run. */
const NEW = "new";

export default function Page() {
  const state = useWaiting();
  const runs = useRuns();
  const [, open] = useParam("run");
  return (
    <>
      <PageHeader
        title="Reconciliation"
        description="Compares the engines' counts, usage events, prices, sums, ledger and invoices. Changes are compared every hour, everything once a day."
        action={<Button onClick={() => open(NEW)}>Compare now</Button>}
      />
      <Stack>
        {state.isPending && <TableSkeleton rows={3} />}
        {state.error && !state.data && (
          <ErrorState error={state.error} onRetry={() => state.refetch()} />
        )}
        {state.data && <State of={state.data} onOpen={open} />}
        {state.data && state.data.budget_corrections.length > 0 && (
          <Corrections rows={state.data.budget_corrections} />
        )}
        {runs.isPending && <TableSkeleton />}
        {runs.error && <ErrorState error={runs.error} onRetry={runs.refetch} />}
        {runs.first && runs.rows.length === 0 && (
          <EmptyState icon={<IconScale size={24} />} title="No comparison yet">
            The first run starts automatically within an hour. Select Compare now to start one
            immediately.
          </EmptyState>
        )}
        {runs.rows.length > 0 && <Runs runs={runs.rows} onOpen={open} more={runs.more} />}
      </Stack>
      <SidePanel param="run" title={(id) => (id === NEW ? "Compare now" : "Reconciliation run")}>
        {(id) =>
          id === NEW ? (
            <AskForm onAsked={(run) => open(run.id)} onClose={() => open(null)} />
          ) : (
            <RunDetails key={id} id={id} />
          )
        }
      </SidePanel>
    </>
  );
}

interface StateProps {
  of: Schemas["Reconciliation"];
  onOpen: (id: string) => void;
}

function State({ of, onOpen }: StateProps) {
  const { last_run: run } = of;
  const waits = waitingWords(run?.waiting ?? null);
  return (
    <SimpleGrid cols={{ base: 1, md: 2 }}>
      <Panel
        title="Last full comparison"
        note={run?.finished_at ? `Finished ${formatDate(run.finished_at)}` : undefined}
        action={run && <RunBadge run={run} />}
      >
        {run === null || run === undefined ? (
          <Text size="sm" c="dimmed">
            No full comparison has finished yet.
          </Text>
        ) : (
          <Stack gap="xs">
            <Text size="sm" data-testid="last-proof">
              {verdictOf(run) === "agrees"
                ? `${counted(run.looked?.events ?? 0, "event")} and all derived figures agree.`
                : `${counted(differencesIn(run), "difference")}.`}
            </Text>
            {waits && <Text size="sm">In progress, not counted as differences: {waits}.</Text>}
            <Anchor component="button" size="sm" ta="left" onClick={() => onOpen(run.id)}>
              Show the comparison
            </Anchor>
          </Stack>
        )}
        <SimpleGrid cols={2} mt="md" spacing="sm">
          <Stat
            label="Events without a price"
            value={formatCount(of.unrated_events)}
            hint="not billed until priced"
          />
          <Stat
            label="Records that could not be processed"
            value={formatCount(of.dead_letters)}
            hint="not billed, retried automatically"
          />
        </SimpleGrid>
      </Panel>
      <Canary round={of.canary ?? null} />
    </SimpleGrid>
  );
}

function Canary({ round }: { round: Schemas["CanaryRound"] | null }) {
  return (
    <Panel
      title="Synthetic check"
      note={
        round
          ? `Last run: ${formatDate(round.at)}`
          : "A test tenant that regularly sends the same request and checks the response and the bill"
      }
      action={
        round && <Badge color={round.ok ? "teal" : "red"}>{round.ok ? "passed" : "failed"}</Badge>
      }
    >
      {round === null ? (
        <Text size="sm" c="dimmed">
          The synthetic check is off. Set TENORA_CANARY_EVERY_S to turn it on.
        </Text>
      ) : (
        <Scrollable label="Synthetic check results">
          <Table aria-label="Synthetic check results" verticalSpacing={6} miw={380}>
            <Table.Thead>
              <Table.Tr>
                <Table.Th>Check</Table.Th>
                <Table.Th>Result</Table.Th>
                <Table.Th ta="right">Duration</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {round.checks.map(({ name, problem, seconds }) => (
                <Table.Tr key={name}>
                  <Table.Td>{name.replaceAll("_", " ")}</Table.Td>
                  <Table.Td>{problem ?? "passed"}</Table.Td>
                  <Table.Td ta="right">{formatMs(seconds * 1000)}</Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </Scrollable>
      )}
    </Panel>
  );
}

function Corrections({ rows }: { rows: readonly Schemas["BudgetCorrection"][] }) {
  const columns: Column<Schemas["BudgetCorrection"]>[] = [
    { key: "account", header: "Budget", cell: ({ account }) => account },
    { key: "tenant", header: "Tenant", cell: ({ tenant_id }) => <TenantOf id={tenant_id} /> },
    { key: "counted", header: "Counter", align: "right", cell: ({ counted }) => counted },
    { key: "books", header: "Ledger", align: "right", cell: ({ books }) => books },
    { key: "at", header: "Corrected", cell: ({ found_at }) => formatDate(found_at) },
  ];
  return (
    <Panel
      title="Corrected budgets"
      note="Budget counters of the last day that differed from the ledger"
      padding="0"
    >
      <DataTable
        label="Corrected budgets"
        columns={columns}
        rows={rows}
        rowKey={({ account, tenant_id, found_at }) => `${account} ${tenant_id} ${found_at}`}
        maxHeight={240}
      />
    </Panel>
  );
}

interface RunsProps {
  runs: readonly Run[];
  onOpen: (id: string) => void;
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

function Runs({ runs, onOpen, more }: RunsProps) {
  const columns: Column<Run>[] = [
    {
      key: "asked",
      header: "Started",
      cell: (run) => (
        <Anchor component="button" size="sm" onClick={() => onOpen(run.id)}>
          {formatDate(run.asked_at)}
        </Anchor>
      ),
    },
    { key: "by", header: "Started by", cell: ({ asked_by }) => asked_by },
    { key: "scope", header: "Scope", cell: scopeWords },
    {
      key: "state",
      header: "Result",
      cell: (run) => (
        <Group gap={6} wrap="nowrap">
          <RunBadge run={run} />
          {differencesIn(run) > 0 && formatCount(differencesIn(run))}
        </Group>
      ),
    },
    {
      key: "events",
      header: "Events",
      align: "right",
      cell: ({ looked }) => (looked ? formatCount(looked.events) : "–"),
    },
    {
      key: "took",
      header: "Duration",
      align: "right",
      cell: (run) => {
        const seconds = secondsOf(run);
        return seconds === null ? "–" : formatMs(seconds * 1000);
      },
    },
  ];
  return (
    <DataTable
      label="Reconciliation runs"
      columns={columns}
      rows={runs}
      rowKey={({ id }) => id}
      minWidth={820}
      {...more}
    />
  );
}
