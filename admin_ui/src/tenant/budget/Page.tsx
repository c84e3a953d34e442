/** What the whole account may cost in a month, and when to tell of it. */

import {
  Alert,
  Anchor,
  Button,
  Checkbox,
  Group,
  NativeSelect,
  SimpleGrid,
  Stack,
  TagsInput,
  Text,
  TextInput,
} from "@mantine/core";
import { type FormEvent, useState } from "react";
import { Link } from "react-router";
import { useMayChange } from "../../api/roles";
import { ConfirmModal } from "../../components/ConfirmModal";
import { formatDate } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { ErrorState, TableSkeleton } from "../../components/states";
import {
  type AccountBudget,
  bodyOf,
  currenciesFor,
  faultsIn,
  fieldsOf,
  inFormWords,
  isSet,
  REFUSE,
} from "./model";
import { useAccountBudget, useDeleteBudget, usePutBudget } from "./queries";
import { Standing } from "./Standing";

export default function Page() {
  const budget = useAccountBudget();
  return (
    <>
      <PageHeader
        title="Budget"
        description="A monthly budget for the whole account: all keys and people together."
      />
      {budget.isPending && <TableSkeleton rows={6} />}
      {budget.error && !budget.data && (
        <ErrorState error={budget.error} onRetry={() => budget.refetch()} />
      )}
      {budget.data && (
        <Stack>
          {isSet(budget.data) && (
            <Panel title="This month" note={`Usage in ${budget.data.currency}, before tax`}>
              <Standing budget={budget.data} />
            </Panel>
          )}
          <Form key={budget.data.updated_at ?? ""} budget={budget.data} />
          <Text size="sm" c="dimmed">
            The plan and single keys can have budgets, too; the first one that is used up counts.
            See{" "}
            <Anchor component={Link} to="/limits" inherit underline="always">
              Limits
            </Anchor>
            .
          </Text>
        </Stack>
      )}
    </>
  );
}

function Form({ budget }: { budget: AccountBudget }) {
  const mayChange = useMayChange("billing");
  const [fields, setFields] = useState(() => fieldsOf(budget));
  const [isTried, setTried] = useState(false);
  const put = usePutBudget(() => setTried(false));
  const faults = faultsIn(fields);
  const set = (changes: Partial<typeof fields>) => {
    setFields((before) => ({ ...before, ...changes }));
    put.reset();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setTried(true);
    if (Object.keys(faults).length === 0) put.mutate(bodyOf(fields));
  };
  return (
    <Panel
      title={isSet(budget) ? "Change the budget" : "Set a budget"}
      note="Takes effect with the next request"
    >
      <form onSubmit={submit} noValidate>
        <Stack maw={720}>
          {!mayChange && <WhyNot />}
          <SimpleGrid cols={{ base: 1, xs: 2 }}>
            <TextInput
              label={`Amount a month, ${fields.currency}`}
              inputMode="decimal"
              placeholder="25.00"
              readOnly={!mayChange}
              value={fields.amount}
              error={isTried && faults.amount}
              onChange={(event) => set({ amount: event.currentTarget.value.trim() })}
            />
            <NativeSelect
              label="Currency"
              description="Usage in other currencies does not count"
              inputWrapperOrder={["label", "input", "description", "error"]}
              data={currenciesFor(budget)}
              disabled={!mayChange}
              value={fields.currency}
              onChange={(event) => set({ currency: event.currentTarget.value })}
            />
          </SimpleGrid>
          <TagsInput
            label="Send an alert at, % of the budget"
            description="Once a month each: here, as the event budget.alert, and to webhooks"
            placeholder="80"
            readOnly={!mayChange}
            value={fields.thresholds}
            error={isTried && faults.thresholds}
            onChange={(thresholds) => set({ thresholds })}
          />
          <Checkbox
            label={REFUSE}
            description="Until the next month (UTC), or until the budget is raised"
            disabled={!mayChange}
            checked={fields.hard}
            onChange={(event) => set({ hard: event.currentTarget.checked })}
          />
          {put.error && (
            <ErrorState error={inFormWords(put.error)} title="The budget was not saved" />
          )}
          {put.isSuccess && (
            <Alert color="teal" role="status">
              Saved.
            </Alert>
          )}
          <Group justify="space-between">
            <Text size="xs" c="dimmed">
              {budget.updated_at ? `Changed ${formatDate(budget.updated_at)}` : "No budget is set"}
            </Text>
            {mayChange && (
              <Group gap="sm">
                {isSet(budget) && <Remove />}
                <Button type="submit" loading={put.isPending}>
                  Save the budget
                </Button>
              </Group>
            )}
          </Group>
        </Stack>
      </form>
    </Panel>
  );
}

function WhyNot() {
  return (
    <Text size="sm" c="dimmed">
      You can see the budget but not change it. Owners and people with the role billing can, and
      keys with the scope keys.
    </Text>
  );
}

function Remove() {
  const [isAsked, ask] = useState(false);
  const remove = useDeleteBudget(() => ask(false));
  return (
    <>
      <Button variant="default" onClick={() => ask(true)}>
        Remove the budget
      </Button>
      <ConfirmModal
        opened={isAsked}
        title="Remove the account budget?"
        confirm="Remove"
        busy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate()}
        onClose={() => {
          remove.reset();
          ask(false);
        }}
      >
        No more alerts are sent, and no request is refused because of it. Budgets of the plan and of
        keys stay.
      </ConfirmModal>
    </>
  );
}
