/** Where events go, and which: a new endpoint or a changed one. */

import { Button, Checkbox, Group, Radio, Stack, TagsInput, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { ErrorState } from "../components/states";
import { type EndpointFields, EVENT_TYPES } from "./model";

interface EndpointFormProps {
  start: EndpointFields;
  submitLabel: string;
  busy: boolean;
  error: unknown;
  onSubmit: (fields: EndpointFields) => void;
  onCancel: () => void;
}

const KNOWN: readonly string[] = EVENT_TYPES;

export function EndpointForm({ start, submitLabel, busy, error, ...props }: EndpointFormProps) {
  const [fields, setFields] = useState(start);
  const set = (changes: Partial<EndpointFields>) => setFields((now) => ({ ...now, ...changes }));
  const others = fields.types.filter((type) => !KNOWN.includes(type));

  function submit(event: FormEvent) {
    event.preventDefault();
    props.onSubmit(fields);
  }

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput
          label="URL"
          description="Events are sent with POST and signed as defined by Standard Webhooks"
          placeholder="https://example.com/hooks/tenora"
          type="url"
          required
          data-autofocus
          value={fields.url}
          onChange={(event) => set({ url: event.currentTarget.value })}
        />
        <TextInput
          label="Description"
          value={fields.description}
          maxLength={200}
          onChange={(event) => set({ description: event.currentTarget.value })}
        />
        <Radio.Group
          label="Events"
          value={fields.isAll ? "all" : "some"}
          onChange={(value) => set({ isAll: value === "all" })}
        >
          <Group mt={6}>
            <Radio value="all" label="All events, including types added later" />
            <Radio value="some" label="Selected events" />
          </Group>
        </Radio.Group>
        {!fields.isAll && (
          <>
            <Checkbox.Group
              aria-label="Event types"
              value={fields.types}
              onChange={(types) => set({ types })}
            >
              <Stack gap={6}>
                {KNOWN.map((type) => (
                  <Checkbox key={type} value={type} label={type} size="xs" />
                ))}
              </Stack>
            </Checkbox.Group>
            <TagsInput
              label="Other event types"
              value={others}
              onChange={(types) =>
                set({ types: [...fields.types.filter((type) => KNOWN.includes(type)), ...types] })
              }
            />
          </>
        )}
        {error ? <ErrorState error={error} title="The endpoint was not saved" /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={props.onCancel}>
            Cancel
          </Button>
          <Button
            type="submit"
            loading={busy}
            disabled={fields.url.trim() === "" || (!fields.isAll && fields.types.length === 0)}
          >
            {submitLabel}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
