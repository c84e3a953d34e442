/** One invoice, for the operator: down to its requests, and what can be done to it. */

import { Group, Stack } from "@mantine/core";
import { useParams } from "react-router";
import { useIsRole } from "../../api/roles";
import { PageHeader } from "../../components/PageHeader";
import { ErrorState, TableSkeleton } from "../../components/states";
import { TenantName } from "../../components/TenantName";
import { InvoiceBadge } from "../../invoices/InvoiceBadge";
import { InvoiceFiles, InvoiceView } from "../../invoices/InvoiceView";
import { monthTitle } from "../../invoices/model";
import { useInvoice } from "../../invoices/queries";
import { InvoiceActions } from "./InvoiceActions";

export default function Page() {
  const { invoice = "" } = useParams();
  const found = useInvoice("operator", invoice);
  const { data } = found;
  const mayChange = useIsRole("billing");
  return (
    <>
      <PageHeader
        title={data ? (data.number ? `Invoice ${data.number}` : "Draft invoice") : "Invoice"}
        description={
          data && (
            <>
              {monthTitle(data.period)}, for{" "}
              <TenantName id={data.tenant_id} name={data.tenant_name} />
            </>
          )
        }
        beside={data && <InvoiceBadge invoice={data} />}
        back={{ to: "/operator/billing?tab=invoices", label: "Invoices" }}
        action={data && <InvoiceFiles side="operator" invoice={data} />}
      />
      {found.isPending && <TableSkeleton rows={8} />}
      {found.error && !data && <ErrorState error={found.error} onRetry={() => found.refetch()} />}
      {data && (
        <Stack>
          {mayChange && (
            <Group>
              <InvoiceActions invoice={data} />
            </Group>
          )}
          <InvoiceView
            side="operator"
            invoice={data}
            requestAddress={(id) => `/operator/requests/${id}`}
          />
        </Stack>
      )}
    </>
  );
}
