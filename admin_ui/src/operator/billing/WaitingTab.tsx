/** What was used and is on no invoice yet, and what waits for a price. */

import { Alert, Anchor, SimpleGrid, Stack, Text } from "@mantine/core";
import { IconCheck } from "@tabler/icons-react";
import { Link } from "react-router";
import type { Schemas } from "../../api/client";
import { type Column, DataTable } from "../../components/DataTable";
import { formatCount, formatDate, formatMoney } from "../../components/format";
import { Panel } from "../../components/Panel";
import { Stat } from "../../components/Stat";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { TenantName } from "../../components/TenantName";
import { TenantOf } from "../TenantOf";
import { Left } from "./CreditsTab";
import { type TenantAccount, useAccounts, useWaiting } from "./queries";

export function WaitingTab() {
  const waiting = useWaiting();
  const unbilled = useAccounts("unbilled");
  return (
    <Stack>
      <SimpleGrid cols={{ base: 1, xs: 2, lg: 4 }} spacing="sm">
        <Left account="unbilled" label="Usage not invoiced yet" />
        <Left account="receivable" label="Invoiced, not paid yet" />
        <Stat
          label="Usage events without a price"
          value={waiting.data ? formatCount(waiting.data.unrated_events) : "–"}
        />
        <Stat
          label="Records that could not be processed"
          value={waiting.data ? formatCount(waiting.data.dead_letters) : "–"}
        />
      </SimpleGrid>
      {waiting.error && !waiting.data && (
        <ErrorState error={waiting.error} onRetry={() => waiting.refetch()} />
      )}
      {waiting.data && waiting.data.unrated_events > 0 && (
        <Unrated events={waiting.data.newest_unrated_events} count={waiting.data.unrated_events} />
      )}
      {waiting.data && waiting.data.dead_letters > 0 && (
        <Letters letters={waiting.data.newest_dead_letters} />
      )}
      <Panel
        title="Not invoiced by tenant"
        note="Balance of each tenant's account “unbilled”"
        padding="0"
      >
        {unbilled.isPending && <TableSkeleton />}
        {unbilled.error && <ErrorState error={unbilled.error} onRetry={unbilled.refetch} />}
        {unbilled.first && unbilled.rows.length === 0 && (
          <EmptyState icon={<IconCheck size={24} />} title="All usage is invoiced">
            Usage of each day is posted within a minute of the day's end and appears here until it
            is invoiced.
          </EmptyState>
        )}
        {unbilled.rows.length > 0 && <Accounts rows={unbilled.rows} more={unbilled.more} />}
      </Panel>
    </Stack>
  );
}

interface UnratedProps {
  events: readonly Schemas["UnratedEvent"][];
  count: number;
}

function Unrated({ events, count }: UnratedProps) {
  const columns: Column<Schemas["UnratedEvent"]>[] = [
    {
      key: "request",
      header: "Request",
      cell: ({ x_request_id, request_id }) => (
        <Anchor
          component={Link}
          to={`/operator/requests/${x_request_id ?? request_id}`}
          size="sm"
          ff="monospace"
        >
          {x_request_id ?? request_id}
        </Anchor>
      ),
    },
    {
      key: "tenant",
      header: "Tenant",
      cell: ({ tenant_id }) => <TenantOf id={tenant_id} />,
    },
    { key: "reason", header: "Reason", cell: ({ reason }) => reason },
    { key: "since", header: "Since", cell: ({ since }) => formatDate(since) },
  ];
  return (
    <Panel title="Not priced yet" note={`The newest of ${formatCount(count)} events`} padding="0">
      <Alert color="yellow" m="sm">
        To price this usage, publish a price list that covers it or add the missing prices to an
        existing one. <Link to="/operator/prices">Prices</Link>
      </Alert>
      <DataTable
        label="Events without a price"
        columns={columns}
        rows={events}
        rowKey={({ event_id }) => event_id}
        minWidth={760}
        maxHeight={320}
      />
    </Panel>
  );
}

function Letters({ letters }: { letters: readonly Schemas["DeadLetter"][] }) {
  return (
    <Panel title="Records that could not be processed" note="Retried automatically">
      <Stack gap={6}>
        {letters.map(({ event_id, reason, received_at }) => (
          <Text key={event_id} size="sm">
            <Text span ff="monospace" inherit>
              {event_id}
            </Text>
            : {reason}, {formatDate(received_at)}
          </Text>
        ))}
      </Stack>
    </Panel>
  );
}

interface AccountsProps {
  rows: readonly TenantAccount[];
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

function Accounts({ rows, more }: AccountsProps) {
  const columns: Column<TenantAccount>[] = [
    {
      key: "tenant",
      header: "Tenant",
      cell: ({ tenant_id, tenant_name }) => (
        <TenantName id={tenant_id} name={tenant_name} tab="credit" />
      ),
    },
    {
      key: "balance",
      header: "Not invoiced",
      align: "right",
      cell: ({ balance, currency }) => formatMoney(balance, currency),
    },
    {
      key: "entries",
      header: "Entries",
      align: "right",
      cell: ({ entries }) => formatCount(entries),
    },
  ];
  return (
    <DataTable
      label="Not invoiced by tenant"
      columns={columns}
      rows={rows}
      rowKey={({ id }) => id}
      minWidth={480}
      maxHeight={480}
      {...more}
    />
  );
}
