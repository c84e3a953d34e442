/** What the account has of credit, what it owes, and every entry of its books. */

import {
  Alert,
  Badge,
  Group,
  NativeSelect,
  SimpleGrid,
  Stack,
  Text,
  TextInput,
} from "@mantine/core";
import { IconCoin } from "@tabler/icons-react";
import { Amounts } from "../../components/Amounts";
import { type Column, DataTable } from "../../components/DataTable";
import { counted, formatCount, formatDate, formatMoney } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { Stat } from "../../components/Stat";
import { useQueryParams } from "../../components/searchParams";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { accountName, balanceOf, KINDS, kindName } from "./model";
import {
  type Grant,
  type LedgerFilters,
  type Transaction,
  useBalances,
  useGrants,
  useLedger,
} from "./queries";

export default function Page() {
  const filters = useFilters();
  const asked = [useBalances(), useGrants(), useLedger(filters)];
  // All at once: what comes later would push the others down.
  const isPending = asked.some((each) => each.isPending);
  return (
    <>
      <PageHeader
        title="Credit and ledger"
        description="What is left of your credit, what is not paid yet, and each entry of your books. Amounts are exact; days are UTC."
      />
      {isPending ? (
        <TableSkeleton rows={8} />
      ) : (
        <Stack>
          <Balances />
          <Grants />
          <Ledger filters={filters} />
        </Stack>
      )}
    </>
  );
}

function Balances() {
  const found = useBalances();
  const balances = found.data?.data ?? [];
  if (found.error && !found.data)
    return <ErrorState error={found.error} onRetry={() => found.refetch()} />;
  if (!found.data) return <TableSkeleton rows={1} />;
  const due = found.data.days_due.length;
  return (
    <>
      <SimpleGrid cols={{ base: 1, xs: 3 }} spacing="sm">
        <Stat
          label="Credit left"
          value={
            <span data-testid="credit-left">
              <Amounts of={balanceOf(balances, ["credit:granted", "credit:bought"], -1)} />
            </span>
          }
          hint="granted or bought, not spent yet"
        />
        <Stat
          label="Not invoiced yet"
          value={<Amounts of={balanceOf(balances, ["unbilled"])} />}
          hint="usage that is on no invoice"
        />
        <Stat
          label="Open invoices"
          value={<Amounts of={balanceOf(balances, ["receivable"])} />}
          hint="invoiced and not paid"
        />
      </SimpleGrid>
      {due > 0 && (
        <Alert color="blue" title="Some usage is not posted yet">
          Usage of {counted(due, "day")} is still to be posted.
        </Alert>
      )}
    </>
  );
}

function Grants() {
  const grants = useGrants();
  const columns: Column<Grant>[] = [
    {
      key: "amount",
      header: "Amount",
      align: "right",
      cell: ({ amount, currency }) => formatMoney(amount, currency),
    },
    { key: "kind", header: "Kind", cell: ({ kind }) => <Badge color="gray">{kind}</Badge> },
    { key: "at", header: "Received", cell: ({ created_at }) => formatDate(created_at) },
    {
      key: "until",
      header: "Can be spent until",
      cell: ({ expires_at, lapsed, currency }) => (
        <>
          {expires_at === null ? "no end" : formatDate(expires_at)}
          {lapsed !== null && (
            <Text size="xs" c="dimmed">
              {formatMoney(lapsed, currency)} lapsed
            </Text>
          )}
        </>
      ),
    },
  ];
  return (
    <Panel title="Credit" note="Credit pays for usage in its own currency" padding="0">
      {grants.isPending && <TableSkeleton rows={2} />}
      {grants.error && <ErrorState error={grants.error} onRetry={grants.refetch} />}
      {grants.first && grants.rows.length === 0 && (
        <Text size="sm" c="dimmed" px="md" pb="md">
          You have no credit. Usage is invoiced.
        </Text>
      )}
      {grants.rows.length > 0 && (
        <DataTable
          label="Credit"
          columns={columns}
          rows={grants.rows}
          rowKey={({ id }) => id}
          maxHeight={320}
          {...grants.more}
        />
      )}
    </Panel>
  );
}

const DAY = /^\d{4}-\d{2}-\d{2}$/;

/** As the address has them. */
function useFilters(): LedgerFilters {
  const [params] = useQueryParams();
  const text = (name: string) => params.get(name) ?? "";
  const day = (name: string) => (DAY.test(text(name)) ? text(name) : undefined);
  const kind = Object.hasOwn(KINDS, text("kind")) ? text("kind") : undefined;
  return { kind, start: day("from"), end: day("before") };
}

function Ledger({ filters }: { filters: LedgerFilters }) {
  const [params, setParams] = useQueryParams();
  const text = (name: string) => params.get(name) ?? "";
  const ledger = useLedger(filters);
  const isFiltered = Object.values(filters).some((each) => each !== undefined);
  const set = (name: string, value: string) =>
    setParams((before) => {
      if (value) before.set(name, value);
      else before.delete(name);
      return before;
    });
  return (
    <Panel title="Ledger" note="Debits are positive; the entries of a line add up to 0">
      <Group gap="sm" mb="sm" align="flex-end">
        <NativeSelect
          label="Kind"
          size="xs"
          value={filters.kind ?? ""}
          data={[
            { value: "", label: "Every kind" },
            ...Object.entries(KINDS).map(([value, label]) => ({ value, label })),
          ]}
          onChange={(event) => set("kind", event.currentTarget.value)}
        />
        <TextInput
          label="From (UTC)"
          size="xs"
          type="date"
          value={text("from")}
          onChange={(event) => set("from", event.currentTarget.value)}
        />
        <TextInput
          label="Before (UTC)"
          size="xs"
          type="date"
          value={text("before")}
          onChange={(event) => set("before", event.currentTarget.value)}
        />
      </Group>
      {ledger.isPending && <TableSkeleton />}
      {ledger.error && <ErrorState error={ledger.error} onRetry={ledger.refetch} />}
      {ledger.first && ledger.rows.length === 0 && (
        <EmptyState
          icon={<IconCoin size={24} />}
          title={isFiltered ? "No entries match" : "No entries yet"}
        >
          {isFiltered
            ? "Change the kind or the days."
            : "Usage, credit, invoices and payments are posted soon after they happen."}
        </EmptyState>
      )}
      {ledger.rows.length > 0 && (
        <DataTable
          label="Ledger"
          columns={COLUMNS}
          rows={ledger.rows}
          rowKey={({ id }) => id}
          rowHeight={64}
          minWidth={820}
          maxHeight={520}
          {...ledger.more}
        />
      )}
    </Panel>
  );
}

const COLUMNS: Column<Transaction>[] = [
  { key: "seq", header: "No.", align: "right", width: 70, cell: ({ seq }) => formatCount(seq) },
  { key: "day", header: "Day (UTC)", width: 110, cell: ({ day }) => day },
  {
    key: "kind",
    header: "Kind",
    width: 160,
    cell: ({ kind, reverses }) => (reverses ? `${kindName(kind)}, reversed` : kindName(kind)),
  },
  {
    key: "entries",
    header: "Entries",
    cell: ({ entries, currency }) =>
      entries.map(({ account, amount }) => (
        <Group key={account} justify="space-between" gap="sm" wrap="nowrap">
          <Text size="xs">{accountName(account)}</Text>
          <Text size="xs" className="numbers">
            {formatMoney(amount, currency)}
          </Text>
        </Group>
      )),
  },
  {
    key: "at",
    header: "Posted",
    width: 190,
    align: "right",
    cell: ({ created_at }) => formatDate(created_at),
  },
];
