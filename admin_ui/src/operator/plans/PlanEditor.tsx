import {
  Alert,
  Anchor,
  Button,
  Checkbox,
  Group,
  NativeSelect,
  SimpleGrid,
  Stack,
  Table,
  Text,
  TextInput,
  Title,
} from "@mantine/core";
import { type FormEvent, type ReactNode, useState } from "react";
import { Link } from "react-router";
import { counted, formatCount } from "../../components/format";
import { ErrorState } from "../../components/states";
import { currencyWords } from "./currency";
import {
  BUDGET_ACTIONS,
  bodyOf,
  type Change,
  CLASSES,
  changesOf,
  faultsIn,
  fieldsOf,
  LATE,
  NEW_PLAN,
  NUMBERS,
  type NumberField,
  type PlanFields,
  type SlaClass,
} from "./model";
import { type PlanListed, usePutPlan } from "./queries";

interface PlanEditorProps {
  /** null: a new one. */
  plan: PlanListed | null;
  mayChange: boolean;
  onDone: () => void;
}

const HINTS: Partial<Record<NumberField, string>> = {
  weight: "0.01 to 100. When tenants wait, service is divided by weight",
  memory_share:
    "Reserved part of device memory. Other tenants cannot use it while the tenant needs it",
  ttft_ms: "Leave empty for no target",
  tpot_ms: "Leave empty for no target",
  budget: "In the currency of the tenant's price list",
};

/** With the currency, where all price lists of the plan have the same. */
function labelOf(field: NumberField, plan: PlanListed | null): string {
  const { label, kind } = NUMBERS[field];
  const words = currencyWords(plan?.currencies ?? []);
  return kind === "money" && words ? `${label}, ${words}` : label;
}

export function PlanEditor({ plan, mayChange, onDone }: PlanEditorProps) {
  const before = plan === null ? NEW_PLAN : fieldsOf(plan);
  const [fields, setFields] = useState(before);
  const [isTried, setTried] = useState(false);
  const put = usePutPlan(onDone);
  const faults = faultsIn(fields);
  const changes = plan === null ? [] : changesOf(before, fields);
  const set = (changed: Partial<PlanFields>) => {
    setFields((now) => ({ ...now, ...changed }));
    put.reset();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setTried(true);
    if (Object.keys(faults).length === 0) put.mutate({ name: fields.name, body: bodyOf(fields) });
  };
  const numbers = (...of: NumberField[]) =>
    of.map((field) => (
      <TextInput
        key={field}
        label={labelOf(field, plan)}
        description={HINTS[field]}
        inputMode="decimal"
        placeholder={field === "weight" ? "1" : "none"}
        value={fields[field]}
        error={isTried && faults[field]}
        readOnly={!mayChange}
        onChange={(event) => set({ [field]: event.currentTarget.value.trim() })}
      />
    ));
  return (
    <form onSubmit={submit}>
      <Stack>
        {plan === null ? (
          <TextInput
            label="Name"
            description="Visible to tenants"
            value={fields.name}
            error={isTried && faults.name}
            onChange={(event) => set({ name: event.currentTarget.value })}
            data-autofocus
          />
        ) : (
          <WhoIsOn plan={plan} />
        )}
        <Part title="Service class and targets">
          <Classes fields={fields} set={set} isFixed={!mayChange} />
          <SimpleGrid cols={{ base: 1, xs: 2 }}>{numbers("ttft_ms", "tpot_ms")}</SimpleGrid>
          <NativeSelect
            label="If a request cannot meet its TTFT target"
            value={fields.late}
            data={Object.entries(LATE).map(([value, label]) => ({ value, label }))}
            disabled={!mayChange}
            onChange={(event) => set({ late: event.currentTarget.value as PlanFields["late"] })}
          />
        </Part>
        <Part title="Share of the engine">
          <SimpleGrid cols={{ base: 1, xs: 2 }}>{numbers("weight", "memory_share")}</SimpleGrid>
        </Part>
        <Part title="Limits">
          <SimpleGrid cols={{ base: 1, xs: 2 }}>
            {numbers(
              "requests_per_min",
              "tokens_per_min",
              "parallel_requests",
              "adapters",
              "adapter_bytes",
            )}
          </SimpleGrid>
        </Part>
        <Part title="Budget">
          <SimpleGrid cols={{ base: 1, xs: 2 }}>
            {numbers("budget", "budget_day", "budget_soft")}
            <NativeSelect
              label="Above the soft limit"
              value={fields.budget_action}
              data={Object.entries(BUDGET_ACTIONS).map(([value, label]) => ({ value, label }))}
              disabled={!mayChange}
              onChange={(event) =>
                set({ budget_action: event.currentTarget.value as PlanFields["budget_action"] })
              }
            />
          </SimpleGrid>
        </Part>
        <Part title="Stored responses">
          <Checkbox
            label="Its tenants may have responses stored"
            description="Each tenant chooses for how long, in its settings"
            checked={fields.stored_responses}
            disabled={!mayChange}
            onChange={(event) => set({ stored_responses: event.currentTarget.checked })}
          />
        </Part>
        {plan !== null && changes.length > 0 && <WhatItDoes plan={plan} changes={changes} />}
        {put.error && <ErrorState error={put.error} />}
        {mayChange && (
          <Group justify="flex-end">
            <Button variant="default" onClick={onDone}>
              Cancel
            </Button>
            <Button
              type="submit"
              loading={put.isPending}
              disabled={plan !== null && changes.length === 0}
            >
              {plan === null ? "Create plan" : "Save changes"}
            </Button>
          </Group>
        )}
      </Stack>
    </form>
  );
}

function Part({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Stack gap="xs" component="section" aria-label={title}>
      <Title order={3} size="h4">
        {title}
      </Title>
      {children}
    </Stack>
  );
}

interface ClassesProps {
  fields: PlanFields;
  set: (changed: Partial<PlanFields>) => void;
  isFixed: boolean;
}

function Classes({ fields, set, isFixed }: ClassesProps) {
  return (
    <>
      <NativeSelect
        label="Service class"
        value={fields.sla_class}
        data={CLASSES}
        disabled={isFixed}
        onChange={(event) => {
          const sla_class = event.currentTarget.value as SlaClass;
          set({ sla_class, tiers: [...new Set([...fields.tiers, sla_class])] });
        }}
      />
      <Checkbox.Group
        label="Classes that requests may select"
        value={fields.tiers}
        onChange={(tiers) => set({ tiers: tiers as SlaClass[] })}
      >
        <Group mt={6}>
          {CLASSES.map((each) => (
            <Checkbox
              key={each}
              value={each}
              label={each}
              disabled={isFixed || each === fields.sla_class}
            />
          ))}
        </Group>
      </Checkbox.Group>
    </>
  );
}

function WhoIsOn({ plan }: { plan: PlanListed }) {
  const tenants = `/operator/tenants?plan=${encodeURIComponent(plan.name)}`;
  return (
    <Text size="sm">
      {plan.tenants === 0 ? (
        "No tenants are on this plan."
      ) : (
        <>
          <Anchor component={Link} to={tenants} inherit>
            {counted(plan.tenants, "tenant")}
          </Anchor>{" "}
          on this plan
          {plan.tenants_suspended > 0 && `, ${formatCount(plan.tenants_suspended)} suspended`}.
        </>
      )}{" "}
      <Anchor
        component={Link}
        to={`/operator/prices?plan=${encodeURIComponent(plan.name)}`}
        inherit
      >
        Prices of this plan
      </Anchor>
    </Text>
  );
}

function WhatItDoes({ plan, changes }: { plan: PlanListed; changes: readonly Change[] }) {
  return (
    <Alert color="yellow" title={`These changes affect ${counted(plan.tenants, "tenant")}`}>
      <Table aria-label="Changes" verticalSpacing={4} horizontalSpacing="xs">
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Setting</Table.Th>
            <Table.Th>Current</Table.Th>
            <Table.Th>New</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {changes.map(({ label, from, to }) => (
            <Table.Tr key={label}>
              <Table.Td>{label}</Table.Td>
              <Table.Td>{from}</Table.Td>
              <Table.Td fw={600}>{to}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
      <Text size="sm" mt="xs">
        The changes apply from the next request. Running requests finish under the current plan.
      </Text>
    </Alert>
  );
}
