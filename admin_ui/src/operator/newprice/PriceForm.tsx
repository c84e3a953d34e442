import {
  ActionIcon,
  Autocomplete,
  Button,
  Group,
  NativeSelect,
  SimpleGrid,
  Stack,
  Text,
  TextInput,
} from "@mantine/core";
import { IconPlus, IconX } from "@tabler/icons-react";
import { Panel } from "../../components/Panel";
import { usePlanNames } from "../plans/queries";
import { HELD, METER_NAMES, METERS, type Meter } from "../prices/model";
import { TenantPicker } from "../TenantPicker";
import { type EntryFields, type Faults, type Fields, SCOPES, type ScopeKind } from "./model";

interface PriceFormProps {
  fields: Fields;
  /** null: not told yet. */
  faults: Faults | null;
  onChange: (changes: Partial<Fields>) => void;
}

export function PriceForm({ fields, faults, onChange }: PriceFormProps) {
  return (
    <Stack>
      <Panel title="Scope and start">
        <Stack gap="sm">
          <Scope fields={fields} faults={faults} onChange={onChange} />
          <SimpleGrid cols={{ base: 1, xs: 2 }}>
            <TextInput
              label="Currency"
              maxLength={3}
              value={fields.currency}
              error={faults?.currency}
              onChange={(event) => onChange({ currency: event.currentTarget.value.toUpperCase() })}
            />
            <TextInput
              label="Starts"
              description="Leave empty to start as soon as possible"
              type="datetime-local"
              step={1}
              value={fields.begins}
              error={faults?.begins}
              onChange={(event) => onChange({ begins: event.currentTarget.value })}
            />
          </SimpleGrid>
        </Stack>
      </Panel>
      <Panel title="Prices" note={`In ${fields.currency}, per unit of each meter`}>
        <Stack gap="md">
          {METERS.map((meter) => (
            <MeterFields
              key={meter}
              meter={meter}
              fields={fields}
              faults={faults}
              onChange={onChange}
            />
          ))}
        </Stack>
      </Panel>
      <Panel
        title="Monthly amounts"
        note="Taken from the list without model or adapter that is in force at the month's end"
      >
        <SimpleGrid cols={{ base: 1, xs: 2 }}>
          {(["minimum", "included"] as const).map((name) => (
            <TextInput
              key={name}
              label={name === "minimum" ? "Monthly minimum" : "Included usage"}
              inputMode="decimal"
              value={fields[name]}
              error={faults?.[name]}
              onChange={(event) => onChange({ [name]: event.currentTarget.value.trim() })}
            />
          ))}
        </SimpleGrid>
      </Panel>
    </Stack>
  );
}

function Scope({ fields, faults, onChange }: PriceFormProps) {
  const plans = usePlanNames();
  return (
    <SimpleGrid cols={{ base: 1, xs: 2 }}>
      <NativeSelect
        label="Applies to"
        value={fields.scope}
        data={Object.entries(SCOPES).map(([value, label]) => ({ value, label }))}
        onChange={(event) => onChange({ scope: event.currentTarget.value as ScopeKind, of: "" })}
      />
      {fields.scope === "plan" && (
        <Autocomplete
          label="Plan"
          data={plans}
          value={fields.of}
          error={faults?.of}
          onChange={(of) => onChange({ of })}
        />
      )}
      {fields.scope === "tenant" && (
        <TenantPicker
          label="Tenant"
          value={fields.of || null}
          error={faults?.of}
          onChange={(id) => onChange({ of: id ?? "" })}
        />
      )}
      {fields.scope === "adapter" && (
        <TextInput
          label="Adapter ID"
          placeholder="adapter_..."
          value={fields.of}
          error={faults?.of}
          onChange={(event) => onChange({ of: event.currentTarget.value.trim() })}
        />
      )}
      <TextInput
        label="Base model"
        description="Leave empty for all models"
        value={fields.model}
        onChange={(event) => onChange({ model: event.currentTarget.value })}
      />
    </SimpleGrid>
  );
}

function MeterFields({ meter, fields, faults, onChange }: PriceFormProps & { meter: Meter }) {
  const { label, unit } = METER_NAMES[meter];
  const entries = fields.entries.filter((entry) => entry.meter === meter);
  const set = (key: number, changes: Partial<EntryFields>) =>
    onChange({
      entries: fields.entries.map((each) => (each.key === key ? { ...each, ...changes } : each)),
    });
  const add = () => {
    const key = Math.max(-1, ...fields.entries.map((each) => each.key)) + 1;
    const from = entries.some(({ class_ }) => class_ === "") ? "" : "0";
    onChange({ entries: [...fields.entries, { key, meter, class_: "", from, price: "" }] });
  };
  return (
    <Stack gap={6} component="section" aria-label={label}>
      <Group justify="space-between" gap="xs">
        <Text size="sm" fw={550}>
          {label}{" "}
          <Text span size="xs" c="dimmed" fw={400}>
            {unit}
          </Text>
        </Text>
        <Button
          size="compact-xs"
          variant="subtle"
          leftSection={<IconPlus size={13} />}
          aria-label={`Add ${HELD.includes(meter) ? "tier" : "class or tier"} to ${label}`}
          onClick={add}
        >
          {HELD.includes(meter) ? "Add tier" : "Add class or tier"}
        </Button>
      </Group>
      {faults?.meters.includes(meter) && (
        <Text size="xs" c="red" role="alert">
          Enter a price. It may be 0.
        </Text>
      )}
      {entries.map((entry, index) => (
        <EntryRow
          key={entry.key}
          entry={entry}
          name={entries.length > 1 ? `${label}, row ${index + 1}` : label}
          isAlone={entries.length === 1}
          fault={faults?.entries[entry.key]}
          onChange={(changes) => set(entry.key, changes)}
          onRemove={() =>
            onChange({ entries: fields.entries.filter(({ key }) => key !== entry.key) })
          }
        />
      ))}
    </Stack>
  );
}

interface EntryRowProps {
  entry: EntryFields;
  name: string;
  isAlone: boolean;
  fault: string | undefined;
  onChange: (changes: Partial<EntryFields>) => void;
  onRemove: () => void;
}

/** One price alone is for every class and tier, and shows nothing else. */
function EntryRow({ entry, name, isAlone, fault, onChange, onRemove }: EntryRowProps) {
  const isPlain = isAlone && entry.class_ === "" && entry.from === "0";
  return (
    <Group gap="xs" align="flex-start" wrap="nowrap">
      {!isPlain && (
        <>
          {!HELD.includes(entry.meter) && (
            <TextInput
              aria-label={`${name}: class`}
              placeholder="any class"
              value={entry.class_}
              onChange={(event) => onChange({ class_: event.currentTarget.value.trim() })}
              flex={1}
            />
          )}
          <TextInput
            aria-label={`${name}: from unit`}
            placeholder="from"
            inputMode="numeric"
            value={entry.from}
            onChange={(event) => onChange({ from: event.currentTarget.value.trim() })}
            flex={1}
          />
        </>
      )}
      <TextInput
        aria-label={`${name}: price`}
        placeholder="0.40"
        inputMode="decimal"
        value={entry.price}
        error={fault}
        onChange={(event) => onChange({ price: event.currentTarget.value.trim() })}
        flex={1}
      />
      {!isPlain && (
        <ActionIcon
          variant="subtle"
          color="gray"
          size="lg"
          aria-label={`${name}: remove`}
          onClick={onRemove}
        >
          <IconX size={16} />
        </ActionIcon>
      )}
    </Group>
  );
}
