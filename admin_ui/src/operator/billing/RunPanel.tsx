/** A run of invoices: drafts first, a look at them, and only then the final ones. */

import {
  Alert,
  Anchor,
  Button,
  Group,
  NativeSelect,
  Progress,
  SimpleGrid,
  Stack,
  Text,
} from "@mantine/core";
import { useState } from "react";
import { Link } from "react-router";
import { Amounts } from "../../components/Amounts";
import { ConfirmModal } from "../../components/ConfirmModal";
import { counted } from "../../components/format";
import { Panel } from "../../components/Panel";
import { ErrorState } from "../../components/states";
import { monthTitle } from "../../invoices/model";
import { TenantPicker } from "../TenantPicker";
import { months, type Run, totalsOf } from "./model";
import { useRun } from "./queries";

export function RunPanel() {
  const [choices] = useState(() => months(new Date()));
  const [period, setPeriod] = useState(choices[1] ?? "");
  const [tenant, setTenant] = useState<string | null>(null);
  const [isFinal, setFinal] = useState(false);
  const [part, setPart] = useState<number | null>(null);
  const drafts = useRun(setPart);
  const finals = useRun(setPart);
  const last = finals.data ?? drafts.data ?? null;
  const isThisMonth = period === choices[0];
  const asked = { period, ...(tenant ? { tenant } : {}) };
  const isSeen = drafts.data?.period === period && !drafts.isPending;
  const forget = () => {
    drafts.reset();
    finals.reset();
  };
  return (
    <Panel
      title="Run invoices"
      note="Drafts can be recalculated. A final invoice gets a number and cannot be changed."
    >
      <Stack gap="sm">
        <SimpleGrid cols={{ base: 1, xs: 2, md: 4 }}>
          <NativeSelect
            label="Month to invoice"
            value={period}
            data={choices.map((value, index) => ({
              value,
              label: index === 0 ? `${monthTitle(value)} to date` : monthTitle(value),
            }))}
            onChange={(event) => {
              setPeriod(event.currentTarget.value);
              forget();
            }}
          />
          <TenantPicker
            label="Tenant"
            placeholder="All tenants"
            clearable
            value={tenant}
            onChange={(next) => {
              setTenant(next);
              forget();
            }}
          />
        </SimpleGrid>
        <Group gap="sm">
          <Button
            loading={drafts.isPending}
            onClick={() => {
              finals.reset();
              drafts.mutate({ ...asked, draft: true });
            }}
          >
            Create drafts
          </Button>
          <Button
            variant="default"
            disabled={!isSeen || isThisMonth}
            onClick={() => setFinal(true)}
          >
            Finalise
          </Button>
          <Text size="sm" c="dimmed">
            {isThisMonth
              ? "The current month can only have drafts."
              : isSeen
                ? "Review the drafts below before you finalise them."
                : "Create drafts before you finalise invoices."}
          </Text>
        </Group>
        {part !== null && <Progress value={100 * part} aria-label="Invoices made" />}
        {drafts.error && <ErrorState error={drafts.error} title="The invoice run failed" />}
        {last && <Report run={last} />}
      </Stack>
      <ConfirmModal
        opened={isFinal}
        title={`Finalise the invoices for ${monthTitle(period)}?`}
        confirm="Finalise"
        busy={finals.isPending}
        error={finals.error}
        onConfirm={() =>
          finals.mutate({ ...asked, draft: false }, { onSuccess: () => setFinal(false) })
        }
        onClose={() => {
          finals.reset();
          setFinal(false);
        }}
      >
        {tenant ? "The tenant's invoice" : "Every tenant's invoice"} gets the next number, is posted
        to the ledger and announced by webhook. A final invoice cannot be edited: you can only void
        it or issue a credit note.
      </ConfirmModal>
    </Panel>
  );
}

function Report({ run }: { run: Run }) {
  const of = run.made > run.invoices.length ? `the first ${run.invoices.length}` : "all";
  return (
    <Alert
      color={run.failed.length > 0 ? "red" : "teal"}
      role="status"
      title={`${counted(run.made, run.status === "final" ? "final invoice" : "draft")} for ${monthTitle(run.period)}`}
    >
      <Stack gap={4}>
        <Text size="sm">
          {counted(run.unchanged, "tenant")} already had a final invoice,{" "}
          {counted(run.empty, "tenant")} had nothing to invoice.
        </Text>
        {run.invoices.length > 0 && (
          <Text size="sm">
            Total of {of}: <Amounts of={totalsOf(run.invoices)} />
          </Text>
        )}
        {run.failed.map(({ tenant, reason }) => (
          <Text key={tenant} size="sm">
            <Anchor component={Link} to={`/operator/tenants/${tenant}`} inherit>
              {tenant}
            </Anchor>
            : {reason}
          </Text>
        ))}
      </Stack>
    </Alert>
  );
}
