/** One of the tenant's invoices. */

import { useParams } from "react-router";
import { PageHeader } from "../../components/PageHeader";
import { ErrorState, TableSkeleton } from "../../components/states";
import { InvoiceBadge } from "../../invoices/InvoiceBadge";
import { InvoiceFiles, InvoiceView } from "../../invoices/InvoiceView";
import { monthTitle } from "../../invoices/model";
import { useInvoice } from "../../invoices/queries";

export default function InvoicePage() {
  const { invoice = "" } = useParams();
  const found = useInvoice("tenant", invoice);
  const { data } = found;
  return (
    <>
      <PageHeader
        title={data ? `Invoice ${data.number ?? ""}` : "Invoice"}
        description={data && monthTitle(data.period)}
        beside={data && <InvoiceBadge invoice={data} />}
        back={{ to: "/invoices", label: "Invoices" }}
        action={data && <InvoiceFiles side="tenant" invoice={data} />}
      />
      {found.isPending && <TableSkeleton rows={8} />}
      {found.error && !data && <ErrorState error={found.error} onRetry={() => found.refetch()} />}
      {data && (
        <InvoiceView side="tenant" invoice={data} requestAddress={(id) => `/requests/${id}`} />
      )}
    </>
  );
}
