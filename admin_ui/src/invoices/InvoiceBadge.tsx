import { Badge } from "@mantine/core";
import type { InvoiceSummary } from "./queries";

const COLORS = { draft: "yellow", final: "teal", void: "gray" } as const;

/** What has become of an invoice: paid and open ones are both final. */
export function InvoiceBadge({ invoice }: { invoice: InvoiceSummary }) {
  const { status, kind, amount_due, total } = invoice;
  if (status === "final" && kind === "credit_note") return <Badge color="grape">credit note</Badge>;
  if (status === "final" && Number(amount_due) <= 0 && Number(total) > 0)
    return <Badge color="teal">paid</Badge>;
  if (status === "final" && Number(amount_due) > 0) return <Badge color="blue">open</Badge>;
  return <Badge color={COLORS[status]}>{status}</Badge>;
}
