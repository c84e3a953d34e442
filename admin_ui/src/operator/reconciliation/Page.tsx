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
        description="What engines counted, events, prices, sums, ledger and invoices, each beside the one before it: every hour what has moved, every day all of it."
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
          <EmptyState icon={<IconScale size={24} />} title="Nothing was compared yet">
            The first run comes by itself within an hour; or compare now.
          </EmptyState>
        )}
        {runs.rows.length > 0 && <Runs runs={runs.rows} onOpen={open} more={runs.more} />}
      </Stack>
      <SidePanel param="run" title={(id) => (id === NEW ? "Compare now" : "A run")}>
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
        title="The last proof"
        note={run?.finished_at ? `Ended ${formatDate(run.finished_at)}` : undefined}
        action={run && <RunBadge run={run} />}
      >
        {run === null || run === undefined ? (
          <Text size="sm" c="dimmed">
            None of everything has ended yet.
          </Text>
        ) : (
          <Stack gap="xs">
            <Text size="sm" data-testid="last-proof">
              {verdictOf(run) === "agrees"
                ? `${counted(run.looked?.events ?? 0, "event")} and all that follows agree.`
                : `${counted(differencesIn(run), "difference")}.`}
            </Text>
            {waits && <Text size="sm">On its way: {waits}.</Text>}
            <Anchor component="button" size="sm" ta="left" onClick={() => onOpen(run.id)}>
              What was compared, and what was found
            </Anchor>
          </Stack>
        )}
        <SimpleGrid cols={2} mt="md" spacing="sm">
          <Stat
            label="Without a price"
            value={formatCount(of.unrated_events)}
            hint="events, not billed"
          />
          <Stat label="Set aside" value={formatCount(of.dead_letters)} hint="records, not billed" />
        </SimpleGrid>
      </Panel>
      <Canary round={of.canary ?? null} />
    </SimpleGrid>
  );
}

function Canary({ round }: { round: Schemas["CanaryRound"] | null }) {
  return (
    <Panel
      title="The canary"
      note={
        round
          ? `Its last round: ${formatDate(round.at)}`
          : "A tenant that asks the same again and again and checks its answers and its bill"
      }
      action={
        round && <Badge color={round.ok ? "teal" : "red"}>{round.ok ? "well" : "not well"}</Badge>
      }
    >
      {round === null ? (
        <Text size="sm" c="dimmed">
          It does not run. TENORA_CANARY_EVERY_S turns it on.
        </Text>
      ) : (
        <Scrollable label="Checks of the canary">
          <Table aria-label="Checks of the canary" verticalSpacing={6} miw={380}>
            <Table.Thead>
              <Table.Tr>
                <Table.Th>Check</Table.Th>
                <Table.Th>Found</Table.Th>
                <Table.Th ta="right">Took</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {round.checks.map(({ name, problem, seconds }) => (
                <Table.Tr key={name}>
                  <Table.Td>{name.replaceAll("_", " ")}</Table.Td>
                  <Table.Td>{problem ?? "as it should be"}</Table.Td>
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
    { key: "counted", header: "Counted", align: "right", cell: ({ counted }) => counted },
    { key: "books", header: "Books", align: "right", cell: ({ books }) => books },
    { key: "at", header: "Put right", cell: ({ found_at }) => formatDate(found_at) },
  ];
  return (
    <Panel title="Budgets that had been counted otherwise" note="Of the last day" padding="0">
      <DataTable
        label="Corrections of budgets"
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
      header: "Asked for",
      cell: (run) => (
        <Anchor component="button" size="sm" onClick={() => onOpen(run.id)}>
          {formatDate(run.asked_at)}
        </Anchor>
      ),
    },
    { key: "by", header: "By", cell: ({ asked_by }) => asked_by },
    { key: "scope", header: "What", cell: scopeWords },
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
      header: "Took",
      align: "right",
      cell: (run) => {
        const seconds = secondsOf(run);
        return seconds === null ? "–" : formatMs(seconds * 1000);
      },
    },
  ];
  return (
    <DataTable
      label="Runs"
      columns={columns}
      rows={runs}
      rowKey={({ id }) => id}
      minWidth={820}
      {...more}
    />
  );
}
