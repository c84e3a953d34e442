/** The terms of one key, new or changed: name, scopes, models, expiry and limits. */

import {
  Button,
  Checkbox,
  Collapse,
  Group,
  SimpleGrid,
  Stack,
  TagsInput,
  TextInput,
} from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { type FormEvent, useState } from "react";
import { ErrorState } from "../../components/states";
import type { KeyFields, Scope } from "./model";

interface KeyFormProps {
  start: KeyFields;
  scopes: readonly Scope[];
  /** Suggestions of names. */
  models: readonly string[];
  /** Of budgets; null: it is not known. */
  currency: string | null;
  submitLabel: string;
  cancelLabel: string;
  busy: boolean;
  error: unknown;
  onSubmit: (fields: KeyFields) => void;
  onCancel: () => void;
}

type TextField = "requests" | "tokens" | "parallel" | "budget" | "budgetDay" | "soft";

const LIMITS: { field: TextField; label: string; pattern: string }[] = [
  { field: "requests", label: "Requests per minute", pattern: "[0-9]*" },
  { field: "tokens", label: "Tokens per minute", pattern: "[0-9]*" },
  { field: "parallel", label: "Parallel sequences", pattern: "[0-9]*" },
  { field: "budget", label: "Monthly budget", pattern: "[0-9]*([.][0-9]+)?" },
  { field: "budgetDay", label: "Daily budget", pattern: "[0-9]*([.][0-9]+)?" },
  { field: "soft", label: "Soft limit, % of budget", pattern: "[0-9]*([.][0-9]+)?" },
];

const isMoney = (field: TextField) => field === "budget" || field === "budgetDay";

function isBounded(fields: KeyFields): boolean {
  const texts = [fields.expires, ...LIMITS.map(({ field }) => fields[field])];
  return fields.models.length > 0 || texts.some((text) => text !== "");
}

export function KeyForm(props: KeyFormProps) {
  const { start, onSubmit } = props;
  const [fields, setFields] = useState(start);
  const [bounds, toggle] = useDisclosure(isBounded(start));
  const set = (changes: Partial<KeyFields>) => setFields((now) => ({ ...now, ...changes }));

  function submit(event: FormEvent) {
    event.preventDefault();
    onSubmit(fields);
  }

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput
          label="Key name"
          description="For example, the person or application that uses it"
          value={fields.name}
          onChange={(event) => set({ name: event.currentTarget.value })}
          data-autofocus
        />
        <Checkbox.Group
          label="Scopes"
          value={fields.scopes}
          onChange={(scopes) => set({ scopes: scopes as Scope[] })}
        >
          <Group mt={6}>
            {props.scopes.map((scope) => (
              <Checkbox key={scope} value={scope} label={scope} />
            ))}
          </Group>
        </Checkbox.Group>
        <Group>
          <Button size="compact-sm" variant="subtle" onClick={toggle.toggle} aria-expanded={bounds}>
            Models, expiry and limits
          </Button>
        </Group>
        <Collapse expanded={bounds}>
          <Bounds fields={fields} set={set} models={props.models} currency={props.currency} />
        </Collapse>
        {props.error ? <ErrorState error={props.error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={props.onCancel}>
            {props.cancelLabel}
          </Button>
          <Button
            type="submit"
            loading={props.busy}
            disabled={fields.name.trim() === "" || fields.scopes.length === 0}
          >
            {props.submitLabel}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

interface BoundsProps {
  models: readonly string[];
  currency: string | null;
  fields: KeyFields;
  set: (changes: Partial<KeyFields>) => void;
}

function Bounds({ fields, set, models, currency }: BoundsProps) {
  return (
    <Stack>
      <TagsInput
        label="Models"
        description="An adapter name (all its versions and aliases), a version such as name@3, or the base model. Leave empty for all models"
        placeholder="support"
        data={[...models]}
        value={fields.models}
        onChange={(models) => set({ models })}
      />
      <SimpleGrid cols={{ base: 1, xs: 2 }}>
        {LIMITS.map(({ field, label, pattern }) => (
          <TextInput
            key={field}
            label={isMoney(field) && currency ? `${label}, ${currency}` : label}
            inputMode="decimal"
            pattern={pattern}
            value={fields[field]}
            onChange={(event) => set({ [field]: event.currentTarget.value })}
          />
        ))}
        <TextInput
          label="Expires at the end of (UTC)"
          type="date"
          value={fields.expires}
          onChange={(event) => set({ expires: event.currentTarget.value })}
        />
      </SimpleGrid>
      <Checkbox
        label="Above the soft limit, serve requests in class flex"
        checked={fields.degrade}
        onChange={(event) => set({ degrade: event.currentTarget.checked })}
      />
    </Stack>
  );
}
