/** The tenant's invoices and credit notes, each down to the requests behind it. */

import { IconFileInvoice } from "@tabler/icons-react";
import { PageHeader } from "../../components/PageHeader";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { InvoiceTable } from "../../invoices/InvoiceTable";
import { useInvoices } from "../../invoices/queries";

export default function Page() {
  const found = useInvoices("tenant");
  const invoices = found.data?.pages.flatMap((page) => page.data) ?? [];
  return (
    <>
      <PageHeader
        title="Invoices"
        description="One invoice per month (UTC) and currency. Usage that arrives late is on the next invoice, with its month."
      />
      {found.isPending && <TableSkeleton />}
      {found.error && !found.data && (
        <ErrorState error={found.error} onRetry={() => found.refetch()} />
      )}
      {found.data && invoices.length === 0 && (
        <EmptyState icon={<IconFileInvoice size={24} />} title="No invoices yet">
          The first invoice is created at the end of a month with usage. See Usage and cost for this
          month's charges.
        </EmptyState>
      )}
      {invoices.length > 0 && (
        <InvoiceTable
          invoices={invoices}
          addressOf={({ id }) => `/invoices/${id}`}
          hasMore={found.hasNextPage}
          isLoadingMore={found.isFetchingNextPage}
          onMore={() => void found.fetchNextPage()}
        />
      )}
    </>
  );
}
