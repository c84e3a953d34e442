/** What can be done to an invoice: a payment noted, a part credited, all of it taken back. */

import { Button, Checkbox, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { type FormEvent, type ReactNode, useState } from "react";
import { useNavigate } from "react-router";
import { compare, isDecimal, isZero } from "../../components/decimal";
import { formatMoney } from "../../components/format";
import { ErrorState } from "../../components/states";
import type { Invoice } from "../../invoices/queries";
import { creditable } from "../billing/model";
import { useCreditNote, usePay, useVoid } from "../billing/queries";

type Action = "pay" | "credit" | "void";
const TITLES: Record<Action, string> = {
  pay: "Record payment",
  credit: "Issue credit note",
  void: "Void invoice",
};

export function InvoiceActions({ invoice }: { invoice: Invoice }) {
  const [action, setAction] = useState<Action | null>(null);
  if (invoice.kind !== "invoice" || invoice.status !== "final")
    return invoice.status === "draft" ? (
      <Text size="sm" c="dimmed">
        Each invoice run recalculates this draft. To finalise it, start a run under Billing,
        Invoices.
      </Text>
    ) : null;
  const close = () => setAction(null);
  return (
    <>
      {!isZero(invoice.amount_due) && (
        <Button variant="light" onClick={() => setAction("pay")}>
          {TITLES.pay}
        </Button>
      )}
      <Button variant="default" onClick={() => setAction("credit")}>
        {TITLES.credit}
      </Button>
      <Button variant="default" onClick={() => setAction("void")}>
        {TITLES.void}
      </Button>
      <Modal
        opened={action !== null}
        onClose={close}
        title={<Text fw={600}>{action && TITLES[action]}</Text>}
        closeButtonProps={{ "aria-label": "Close" }}
      >
        {action === "pay" && <Pay invoice={invoice} onClose={close} />}
        {action === "credit" && <Credit invoice={invoice} onClose={close} />}
        {action === "void" && <Void invoice={invoice} onClose={close} />}
      </Modal>
    </>
  );
}

interface FormProps {
  invoice: Invoice;
  onClose: () => void;
}

interface FrameProps {
  submit: string;
  color?: string;
  isRight: boolean;
  isBusy: boolean;
  error: unknown;
  onSubmit: () => void;
  onClose: () => void;
  children: ReactNode;
}

function Frame({ submit, color, isRight, isBusy, error, onSubmit, onClose, children }: FrameProps) {
  return (
    <form
      onSubmit={(event: FormEvent) => {
        event.preventDefault();
        if (isRight) onSubmit();
      }}
    >
      <Stack>
        {children}
        {error ? <ErrorState error={error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button type="submit" color={color} loading={isBusy} disabled={!isRight}>
            {submit}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function Pay({ invoice, onClose }: FormProps) {
  const [amount, setAmount] = useState(invoice.amount_due);
  const [reference, setReference] = useState("");
  const pay = usePay(onClose);
  const isRight = isDecimal(amount) && compare(amount, "0") > 0 && reference.trim() !== "";
  return (
    <Frame
      submit="Record payment"
      isRight={isRight}
      isBusy={pay.isPending}
      error={pay.error}
      onSubmit={() => pay.mutate({ id: invoice.id, amount, reference: reference.trim() })}
      onClose={onClose}
    >
      <TextInput
        label={`Amount in ${invoice.currency}`}
        inputMode="decimal"
        value={amount}
        onChange={(event) => setAmount(event.currentTarget.value.trim())}
        data-autofocus
      />
      <TextInput
        label="Reference"
        description="From your bank or payment service. A reference that was already recorded is not counted again."
        maxLength={200}
        value={reference}
        onChange={(event) => setReference(event.currentTarget.value)}
      />
    </Frame>
  );
}

function Credit({ invoice, onClose }: FormProps) {
  const navigate = useNavigate();
  const lines = creditable(invoice);
  const [amounts, setAmounts] = useState<Record<number, string>>({});
  const [reason, setReason] = useState("");
  const credit = useCreditNote((note) => {
    onClose();
    navigate(`/operator/invoices/${note.id}`);
  });
  const given = lines.flatMap(({ no }) => {
    const amount = amounts[no];
    return amount === undefined ? [] : [{ no, amount }];
  });
  const isRight =
    given.length > 0 &&
    reason.trim() !== "" &&
    given.every(({ amount }) => isDecimal(amount) && compare(amount, "0") > 0);
  return (
    <Frame
      submit="Issue credit note"
      isRight={isRight}
      isBusy={credit.isPending}
      error={credit.error}
      onSubmit={() => credit.mutate({ id: invoice.id, lines: given, reason: reason.trim() })}
      onClose={onClose}
    >
      <Text size="sm">
        Choose the lines to credit and the amount for each, in {invoice.currency}. The tax is
        adjusted automatically.
      </Text>
      {lines.map((line) => (
        <Group key={line.no} gap="xs" wrap="nowrap" justify="space-between">
          <Checkbox
            label={`${line.description}, ${formatMoney(line.amount, invoice.currency)}`}
            checked={amounts[line.no] !== undefined}
            onChange={(event) => {
              const { [line.no]: _, ...others } = amounts;
              setAmounts(
                event.currentTarget.checked ? { ...others, [line.no]: line.amount } : others,
              );
            }}
          />
          {amounts[line.no] !== undefined && (
            <TextInput
              aria-label={`Amount for line ${line.no}`}
              size="xs"
              w={120}
              inputMode="decimal"
              value={amounts[line.no]}
              onChange={(event) =>
                setAmounts({ ...amounts, [line.no]: event.currentTarget.value.trim() })
              }
            />
          )}
        </Group>
      ))}
      <TextInput
        label="Reason"
        description="Printed on the credit note"
        maxLength={200}
        value={reason}
        onChange={(event) => setReason(event.currentTarget.value)}
      />
    </Frame>
  );
}

function Void({ invoice, onClose }: FormProps) {
  const [reason, setReason] = useState("");
  const take = useVoid(onClose);
  return (
    <Frame
      submit="Void invoice"
      color="red"
      isRight={reason.trim() !== ""}
      isBusy={take.isPending}
      error={take.error}
      onSubmit={() => take.mutate({ id: invoice.id, reason: reason.trim() })}
      onClose={onClose}
    >
      <Text size="sm">
        The invoice keeps its number and becomes void. Its usage is billed again with the next run.
        An invoice with payments or credit notes cannot be voided.
      </Text>
      <TextInput
        label="Reason"
        maxLength={200}
        value={reason}
        onChange={(event) => setReason(event.currentTarget.value)}
        data-autofocus
      />
    </Frame>
  );
}
