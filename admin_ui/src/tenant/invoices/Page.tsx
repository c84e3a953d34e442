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
        description="One for each month (UTC) and currency. What is late comes with the next one, named by its month."
      />
      {found.isPending && <TableSkeleton />}
      {found.error && !found.data && (
        <ErrorState error={found.error} onRetry={() => found.refetch()} />
      )}
      {found.data && invoices.length === 0 && (
        <EmptyState icon={<IconFileInvoice size={24} />} title="No invoice yet">
          The first one is made when a month with usage is over. Usage and cost shows what this
          month comes to.
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
