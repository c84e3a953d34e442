import { Anchor } from "@mantine/core";
import { Link, useNavigate } from "react-router";
import { type Column, DataTable } from "../components/DataTable";
import { formatDay } from "../components/format";
import { Money } from "../components/Money";
import { InvoiceBadge } from "./InvoiceBadge";
import { monthTitle } from "./model";
import type { InvoiceSummary } from "./queries";

interface InvoiceTableProps {
  invoices: readonly InvoiceSummary[];
  addressOf: (invoice: InvoiceSummary) => string;
  /** The operator's: names by tenant. */
  tenants?: ReadonlyMap<string, string>;
  hasMore?: boolean;
  isLoadingMore?: boolean;
  onMore?: () => void;
}

/** Invoices and credit notes, newest first. */
export function InvoiceTable({ invoices, addressOf, tenants, ...more }: InvoiceTableProps) {
  const navigate = useNavigate();
  const columns: Column<InvoiceSummary>[] = [
    {
      key: "number",
      header: "Number",
      cell: (each) => (
        <Anchor component={Link} to={addressOf(each)} size="sm">
          {each.number ?? `Draft for ${monthTitle(each.period)}`}
        </Anchor>
      ),
    },
    { key: "period", header: "Month", cell: (each) => monthTitle(each.period) },
    ...(tenants
      ? [
          {
            key: "tenant",
            header: "Tenant",
            cell: (each: InvoiceSummary) => tenants.get(each.tenant_id) ?? each.tenant_id,
          },
        ]
      : []),
    { key: "status", header: "Status", cell: (each) => <InvoiceBadge invoice={each} /> },
    {
      key: "due",
      header: "Due date (UTC)",
      cell: (each) => (each.due_at ? formatDay(each.due_at) : "–"),
    },
    {
      key: "total",
      header: "Total",
      align: "right",
      cell: ({ total, currency }) => <Money of={{ amount: total, currency }} />,
    },
    {
      key: "open",
      header: "Amount due",
      align: "right",
      cell: ({ status, amount_due, currency }) =>
        status === "draft" ? "once finalised" : <Money of={{ amount: amount_due, currency }} />,
    },
  ];
  return (
    <DataTable
      label="Invoices"
      columns={columns}
      rows={invoices}
      rowKey={({ id }) => id}
      onRow={(each) => navigate(addressOf(each))}
      minWidth={760}
      {...more}
    />
  );
}
