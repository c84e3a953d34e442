/** Credit of all tenants: what is left of it, and every grant. */

import { Badge, SimpleGrid, Stack } from "@mantine/core";
import { IconCoin } from "@tabler/icons-react";
import { Amounts } from "../../components/Amounts";
import { type Column, DataTable } from "../../components/DataTable";
import { formatDate, formatMoney } from "../../components/format";
import { SearchField } from "../../components/SearchField";
import { useParam } from "../../components/SidePanel";
import { Stat } from "../../components/Stat";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { TenantName } from "../../components/TenantName";
import { negated } from "../tenant/model";
import { type AccountName, type TenantCredit, useAccounts, useCredits } from "./queries";

export function CreditsTab() {
  const [q] = useParam("q");
  const credits = useCredits(q ?? undefined);
  return (
    <Stack>
      <SimpleGrid cols={{ base: 1, xs: 3 }} spacing="sm">
        <Left account="credit:bought" label="Purchased credit left" isOwed />
        <Left account="credit:granted" label="Granted credit left" isOwed />
        <Left account="credit:lapsed" label="Purchased credit expired" isOwed />
      </SimpleGrid>
      <SearchField label="Search credit" placeholder="Tenant, note or ID" />
      {credits.isPending && <TableSkeleton />}
      {credits.error && <ErrorState error={credits.error} onRetry={credits.refetch} />}
      {credits.first && credits.rows.length === 0 && (
        <EmptyState icon={<IconCoin size={24} />} title="No credit to show">
          Clear the search, or grant credit on a tenant's page under Credit and ledger.
        </EmptyState>
      )}
      {credits.rows.length > 0 && <Grants grants={credits.rows} more={credits.more} />}
    </Stack>
  );
}

interface LeftProps {
  account: AccountName;
  label: string;
  /** A liability or income: below 0 in the books. */
  isOwed?: boolean;
}

/** One account over all tenants, in each currency. */
export function Left({ account, label, isOwed = false }: LeftProps) {
  const accounts = useAccounts(account);
  const totals = accounts.first?.totals;
  const shown =
    totals &&
    Object.fromEntries(
      Object.entries(totals).map(([currency, amount]) => [
        currency,
        isOwed ? negated(amount) : amount,
      ]),
    );
  return (
    <Stat
      label={label}
      value={shown ? <Amounts of={shown} /> : "–"}
      hint={accounts.error ? accounts.error.message : undefined}
    />
  );
}

interface GrantsProps {
  grants: readonly TenantCredit[];
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

function Grants({ grants, more }: GrantsProps) {
  const columns: Column<TenantCredit>[] = [
    {
      key: "tenant",
      header: "Tenant",
      cell: ({ tenant_id, tenant_name }) => (
        <TenantName id={tenant_id} name={tenant_name} tab="credit" />
      ),
    },
    {
      key: "amount",
      header: "Amount",
      align: "right",
      cell: ({ amount, currency }) => formatMoney(amount, currency),
    },
    { key: "kind", header: "Kind", cell: ({ kind }) => <Badge color="gray">{kind}</Badge> },
    {
      key: "lapsed",
      header: "Expired",
      align: "right",
      cell: ({ lapsed, currency }) => (lapsed === null ? "–" : formatMoney(lapsed, currency)),
    },
    {
      key: "until",
      header: "Expires",
      cell: ({ expires_at }) => (expires_at ? formatDate(expires_at) : "–"),
    },
    { key: "note", header: "Note", cell: ({ note }) => note ?? "–" },
    { key: "at", header: "Granted", cell: ({ created_at }) => formatDate(created_at) },
  ];
  return (
    <DataTable
      label="Credit of all tenants"
      columns={columns}
      rows={grants}
      rowKey={({ id }) => id}
      minWidth={860}
      {...more}
    />
  );
}
