/** What a tenant has of credit, what each account of its books comes to, and every posting. */

import { Alert, Badge, Button, Group, SimpleGrid, Stack, Table, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconCoin, IconPlus } from "@tabler/icons-react";
import { useIsRole } from "../../api/roles";
import { Amounts } from "../../components/Amounts";
import { type Column, DataTable } from "../../components/DataTable";
import { counted, formatCount, formatDate, formatMoney } from "../../components/format";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { accountName, kindName } from "../../tenant/credit/model";
import type { Tenant } from "../tenants/queries";
import { GrantModal } from "./GrantModal";
import { creditOf } from "./model";
import { type Grant, type Transaction, useBalances, useGrants, useLedger } from "./queries";

export function CreditAndLedger({ tenant }: { tenant: Tenant }) {
  return (
    <Stack>
      <SimpleGrid cols={{ base: 1, lg: 2 }}>
        <Credit tenant={tenant} />
        <Balances tenant={tenant.id} />
      </SimpleGrid>
      <Ledger tenant={tenant.id} />
    </Stack>
  );
}

function Credit({ tenant }: { tenant: Tenant }) {
  const grants = useGrants(tenant.id);
  const balances = useBalances(tenant.id);
  const mayGrant = useIsRole("billing");
  const [isGranting, grant] = useDisclosure();
  const left = creditOf(balances.data?.data ?? []);
  return (
    <Panel
      title="Credit"
      note={
        tenant.prepaid
          ? "Prepaid: requests are rejected when no credit is left"
          : "Billed: credit is used before charges are invoiced"
      }
      action={
        mayGrant && (
          <Button size="xs" leftSection={<IconPlus size={14} />} onClick={grant.open}>
            Grant credit
          </Button>
        )
      }
    >
      {balances.data && (
        <Group gap="xs" mb="sm">
          <Text size="sm" c="dimmed">
            Balance:
          </Text>
          <Text fw={600} data-testid="credit-left">
            <Amounts of={left} />
          </Text>
        </Group>
      )}
      {grants.isPending && <TableSkeleton rows={2} />}
      {grants.error && <ErrorState error={grants.error} onRetry={grants.refetch} />}
      {grants.first && grants.rows.length === 0 && (
        <Text size="sm" c="dimmed">
          No credit has been granted or purchased.
        </Text>
      )}
      {grants.rows.length > 0 && <Grants grants={grants.rows} more={grants.more} />}
      <GrantModal tenant={tenant} opened={isGranting} onClose={grant.close} />
    </Panel>
  );
}

interface GrantsProps {
  grants: readonly Grant[];
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

function Grants({ grants, more }: GrantsProps) {
  const columns: Column<Grant>[] = [
    {
      key: "amount",
      header: "Amount",
      align: "right",
      cell: ({ amount, currency }) => formatMoney(amount, currency),
    },
    { key: "kind", header: "Kind", cell: ({ kind }) => <Badge color="gray">{kind}</Badge> },
    { key: "note", header: "Note", cell: ({ note }) => note ?? "–" },
    {
      key: "until",
      header: "Expires",
      cell: (grant) =>
        grant.lapsed !== null
          ? `${formatMoney(grant.lapsed, grant.currency)} expired`
          : grant.expires_at
            ? formatDate(grant.expires_at)
            : "–",
    },
    { key: "at", header: "Granted", cell: ({ created_at }) => formatDate(created_at) },
  ];
  return (
    <DataTable
      label="Granted and purchased credit"
      columns={columns}
      rows={grants}
      rowKey={({ id }) => id}
      minWidth={620}
      maxHeight={320}
      {...more}
    />
  );
}

function Balances({ tenant }: { tenant: string }) {
  const balances = useBalances(tenant);
  const rows = balances.data?.data ?? [];
  return (
    <Panel
      title="Accounts"
      note="Positive balances are debit. The balances of each currency add up to 0."
    >
      {balances.error && !balances.data && (
        <ErrorState error={balances.error} onRetry={() => balances.refetch()} />
      )}
      {balances.isPending && <TableSkeleton />}
      {balances.data && balances.data.days_due.length > 0 && (
        <Alert color="yellow" mb="sm" title="Postings pending">
          Usage of {counted(balances.data.days_due.length, "day")} has not been posted yet.
        </Alert>
      )}
      {balances.data && rows.length === 0 && (
        <Text size="sm" c="dimmed">
          No postings yet.
        </Text>
      )}
      {rows.length > 0 && (
        <Scrollable label="Accounts" style={{ maxHeight: 380 }}>
          <Table aria-label="Accounts" miw={420} verticalSpacing={6}>
            <Table.Thead>
              <Table.Tr>
                <Table.Th>Account</Table.Th>
                <Table.Th>Kind</Table.Th>
                <Table.Th ta="right">Balance</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {rows.map(({ account, nature, currency, balance }) => (
                <Table.Tr key={`${account} ${currency}`}>
                  <Table.Td title={account}>{accountName(account)}</Table.Td>
                  <Table.Td c="dimmed">{nature}</Table.Td>
                  <Table.Td ta="right">{formatMoney(balance, currency)}</Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </Scrollable>
      )}
    </Panel>
  );
}

function Ledger({ tenant }: { tenant: string }) {
  const ledger = useLedger(tenant, undefined);
  if (ledger.isPending) return <TableSkeleton />;
  if (ledger.error) return <ErrorState error={ledger.error} onRetry={ledger.refetch} />;
  if (ledger.rows.length === 0)
    return (
      <EmptyState icon={<IconCoin size={24} />} title="No postings yet">
        Usage is posted once a day. Credit and invoices are posted when they are created.
      </EmptyState>
    );
  const columns: Column<Transaction>[] = [
    { key: "seq", header: "No.", align: "right", width: 70, cell: ({ seq }) => formatCount(seq) },
    { key: "day", header: "Day (UTC)", width: 110, cell: ({ day }) => day },
    { key: "kind", header: "Kind", width: 120, cell: ({ kind }) => kindName(kind) },
    {
      key: "entries",
      header: "Entries",
      cell: ({ entries, currency }) =>
        entries
          .map(({ account, amount }) => `${accountName(account)} ${formatMoney(amount, currency)}`)
          .join(", "),
    },
    {
      key: "note",
      header: "Note",
      cell: ({ note, reverses }) => note ?? (reverses ? "reversal" : "–"),
    },
    { key: "at", header: "Posted", width: 170, cell: ({ created_at }) => formatDate(created_at) },
  ];
  return (
    <DataTable
      label="Ledger"
      columns={columns}
      rows={ledger.rows}
      rowKey={({ id }) => id}
      minWidth={860}
      maxHeight={460}
      {...ledger.more}
    />
  );
}
