/** Invoices and credit notes: all of them, or one tenant's. */

import { Anchor, Button, Group, NativeSelect, Stack, Text } from "@mantine/core";
import { IconFileInvoice } from "@tabler/icons-react";
import { useState } from "react";
import { Link } from "react-router";
import { type Column, DataTable } from "../../components/DataTable";
import { formatDate, formatDay, formatMoney } from "../../components/format";
import { SearchField } from "../../components/SearchField";
import { useParam } from "../../components/SidePanel";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { TenantName } from "../../components/TenantName";
import { InvoiceBadge } from "../../invoices/InvoiceBadge";
import { monthTitle } from "../../invoices/model";
import { isMonth, months } from "./model";
import { INVOICE_SORTS, type InvoiceSummary, useInvoiceList } from "./queries";

const STATUSES = ["draft", "final", "void"] as const;

interface InvoiceListProps {
  /** Only this one's; without, all. */
  tenant?: string;
  /** A month that is given by what is around the list. */
  period?: string;
}

export function InvoiceList({ tenant, period }: InvoiceListProps) {
  const [q] = useParam("q");
  const [status, setStatus] = useParam("status");
  const [month, setMonth] = useParam("month");
  const [sort, setSort] = useState<(typeof INVOICE_SORTS)[number]>("-created");
  const [choices] = useState(() => months(new Date(), 25));
  const chosen = STATUSES.find((each) => each === status);
  const wanted = period ?? (isMonth(month) ? month : undefined);
  const list = useInvoiceList({
    q: tenant ? undefined : (q ?? undefined),
    tenant,
    period: wanted,
    status: chosen,
    sort,
  });
  return (
    <Stack gap="sm">
      <Group gap="sm">
        {!tenant && <SearchField label="Search invoices" placeholder="Number, tenant or ID" />}
        <NativeSelect
          aria-label="Invoice status"
          value={chosen ?? ""}
          data={[{ value: "", label: "Any status" }, ...STATUSES]}
          onChange={(event) => setStatus(event.currentTarget.value || null)}
        />
        {period === undefined && (
          <NativeSelect
            aria-label="Invoice month"
            value={wanted ?? ""}
            data={[
              { value: "", label: "Any month" },
              ...choices.map((value) => ({ value, label: monthTitle(value) })),
            ]}
            onChange={(event) => setMonth(event.currentTarget.value || null)}
          />
        )}
      </Group>
      {list.isPending && <TableSkeleton />}
      {list.error && <ErrorState error={list.error} onRetry={list.refetch} />}
      {list.first && list.rows.length === 0 && (
        <EmptyState
          icon={<IconFileInvoice size={24} />}
          title="No invoices match these filters"
          action={
            tenant && (
              <Button component={Link} to="/operator/billing?tab=invoices" variant="light">
                Run invoices
              </Button>
            )
          }
        >
          An invoice run creates the invoices of a month. For the current month it can create
          drafts.
        </EmptyState>
      )}
      {list.rows.length > 0 && (
        <Rows
          invoices={list.rows}
          hasTenant={tenant === undefined}
          sort={sort}
          onSort={(next) => setSort(INVOICE_SORTS.find((each) => each === next) ?? "-created")}
          more={list.more}
        />
      )}
    </Stack>
  );
}

interface RowsProps {
  invoices: readonly InvoiceSummary[];
  hasTenant: boolean;
  sort: string;
  onSort: (sort: string) => void;
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

function Rows({ invoices, hasTenant, sort, onSort, more }: RowsProps) {
  const tenant: Column<InvoiceSummary> = {
    key: "tenant",
    header: "Tenant",
    cell: ({ tenant_id, tenant_name }) => <TenantName id={tenant_id} name={tenant_name} />,
  };
  const columns: Column<InvoiceSummary>[] = [
    {
      key: "number",
      header: "Number",
      sort: "-number",
      cell: (each) => (
        <Anchor
          component={Link}
          to={`/operator/invoices/${each.id}`}
          size="sm"
          fw={550}
          aria-label={`${each.number ?? "Draft"}, ${each.tenant_name ?? each.tenant_id}, ${each.period}`}
        >
          {each.number ?? "Draft"}
        </Anchor>
      ),
    },
    ...(hasTenant ? [tenant] : []),
    { key: "period", header: "Month", cell: ({ period }) => monthTitle(period) },
    { key: "status", header: "Status", cell: (each) => <InvoiceBadge invoice={each} /> },
    {
      key: "total",
      header: "Total",
      align: "right",
      sort: "-total",
      cell: ({ total, currency }) => formatMoney(total, currency),
    },
    {
      key: "due",
      header: "Amount due",
      align: "right",
      cell: ({ status, amount_due, currency, due_at }) => (
        <>
          {status === "draft" ? "once finalised" : formatMoney(amount_due, currency)}
          {due_at && (
            <Text span size="xs" c="dimmed">
              {" "}
              due {formatDay(due_at)}
            </Text>
          )}
        </>
      ),
    },
    {
      key: "created",
      header: "Created",
      sort: "-created",
      cell: ({ created_at }) => formatDate(created_at),
    },
  ];
  return (
    <DataTable
      label="Invoices"
      columns={columns}
      rows={invoices}
      rowKey={({ id }) => id}
      sort={sort}
      onSort={onSort}
      minWidth={820}
      {...more}
    />
  );
}
