/** One invoice: who, what, how much, and every line down to its requests. */

import { Alert, Anchor, Button, Group, SimpleGrid, Stack, Text } from "@mantine/core";
import { IconDownload } from "@tabler/icons-react";
import { Link } from "react-router";
import { describe } from "../api/errors";
import { formatDate, formatMoney } from "../components/format";
import { Money } from "../components/Money";
import { Panel } from "../components/Panel";
import { SidePanel } from "../components/SidePanel";
import { Stat } from "../components/Stat";
import { LineExplorer } from "./LineExplorer";
import { LinesTable } from "./LinesTable";
import { dueWords } from "./model";
import { type Invoice, type Side, useInvoiceFile } from "./queries";

interface InvoiceViewProps {
  side: Side;
  invoice: Invoice;
  /** Where a request of it is shown. */
  requestAddress: (id: string) => string;
}

export function InvoiceView({ side, invoice, requestAddress }: InvoiceViewProps) {
  const money = (amount: string) => <Money of={{ amount, currency: invoice.currency }} />;
  const isDraft = invoice.status === "draft";
  return (
    <Stack>
      {invoice.status === "void" && (
        <Alert color="gray" title="This invoice was voided">
          {invoice.reason}. Its usage is billed again on the next invoice.
        </Alert>
      )}
      {invoice.of_invoice && (
        <Alert color="grape" title="Credit note">
          This credit note reduces{" "}
          <Anchor component={Link} to={`../${invoice.of_invoice}`} relative="path">
            an invoice
          </Anchor>
          {invoice.reason ? `: ${invoice.reason}` : ""}.
        </Alert>
      )}
      <SimpleGrid cols={{ base: 2, md: 4 }} spacing="sm">
        <Stat
          label="Total"
          value={money(invoice.total)}
          hint={`includes tax of ${formatMoney(invoice.tax, invoice.currency)}`}
        />
        <Stat label="Paid" value={money(invoice.amount_paid)} />
        <Stat label="Credited" value={money(invoice.amount_credited)} />
        <Stat
          label="Amount due"
          value={money(isDraft ? invoice.total : invoice.amount_due)}
          hint={dueWords(invoice)}
        />
      </SimpleGrid>
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
        <Party title="From" of={invoice.seller} />
        <Party title="For" of={invoice.buyer} />
      </SimpleGrid>
      <LinesTable invoice={invoice} />
      {invoice.payments.length > 0 && <Payments invoice={invoice} />}
      <SidePanel
        param="line"
        title={(no) => invoice.lines.find((line) => String(line.no) === no)?.description ?? ""}
      >
        {(no) => (
          <LineExplorer
            side={side}
            invoice={invoice}
            no={Number(no)}
            requestAddress={requestAddress}
          />
        )}
      </SidePanel>
    </Stack>
  );
}

/** The same invoice as a document and as a table. */
export function InvoiceFiles({ side, invoice }: { side: Side; invoice: Invoice }) {
  const file = useInvoiceFile(side, invoice.id);
  return (
    <Stack gap={4} align="flex-end">
      <Group gap="xs">
        {(["pdf", "csv"] as const).map((format) => (
          <Button
            key={format}
            variant="default"
            size="sm"
            leftSection={<IconDownload size={16} />}
            loading={file.isPending && file.variables === format}
            onClick={() => file.mutate(format)}
          >
            {format.toUpperCase()}
          </Button>
        ))}
      </Group>
      {file.error && (
        <Text size="xs" c="red" role="alert">
          {describe(file.error)}
        </Text>
      )}
    </Stack>
  );
}

function Party({ title, of }: { title: string; of: Invoice["seller"] }) {
  const lines = [of.name || of.tenant, ...of.address.split("\n"), of.tax_id, of.email];
  return (
    <Panel title={title}>
      {lines.filter(Boolean).length === 0 && (
        <Text size="sm" c="dimmed">
          No billing details were set when this invoice was created.
        </Text>
      )}
      {lines.filter(Boolean).map((line) => (
        <Text key={line} size="sm">
          {line}
        </Text>
      ))}
    </Panel>
  );
}

function Payments({ invoice }: { invoice: Invoice }) {
  return (
    <Panel title="Payments">
      {invoice.payments.map((payment) => (
        <Group key={payment.id} justify="space-between">
          <Text size="sm">
            {formatDate(payment.paid_at)} · {payment.reference}
            {payment.reversed_at && " · reversed"}
          </Text>
          <Text size="sm" td={payment.reversed_at ? "line-through" : undefined}>
            <Money of={{ amount: payment.amount, currency: invoice.currency }} />
          </Text>
        </Group>
      ))}
    </Panel>
  );
}
