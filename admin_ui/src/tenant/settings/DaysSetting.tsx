/** Whether something of requests is kept, for how many days, and how to delete it. */

import { Alert, Button, Group, Stack, Switch, Text, TextInput } from "@mantine/core";
import { type FormEvent, type ReactNode, useState } from "react";
import { ConfirmModal } from "../../components/ConfirmModal";
import { Panel } from "../../components/Panel";
import { ErrorState } from "../../components/states";
import { daysOf, daysWords, type SettingsChange } from "./model";
import { useChangeSettings } from "./queries";

interface DaysSettingProps {
  title: string;
  /** What the switch says. */
  label: string;
  /** What it means, where what is kept is shown. */
  children: ReactNode;
  /** null: off. */
  days: number | null;
  most: number;
  mayChange: boolean;
  /** Why it cannot be turned on, whoever asks. */
  forbidden?: string;
  /** What is sent; `days` null turns it off. */
  bodyOf: (days: number | null) => SettingsChange;
  deletion: { label: string; question: string; says: string; body: SettingsChange };
}

const USUAL_DAYS = "30";

export function DaysSetting(props: DaysSettingProps) {
  const { title, days, mayChange } = props;
  return (
    <Panel title={title} note={days === null ? "Off" : `On, for ${daysWords(days)}`}>
      <Stack gap="sm" maw={720}>
        <Text size="sm" component="div">
          {props.children}
        </Text>
        {props.forbidden && (
          <Text size="sm" c="dimmed">
            {props.forbidden}
          </Text>
        )}
        {mayChange && <Form key={days ?? ""} {...props} />}
      </Stack>
    </Panel>
  );
}

function Form({ label, days, most, forbidden, bodyOf, deletion }: DaysSettingProps) {
  const [isOn, setOn] = useState(days !== null);
  const [text, setText] = useState(days === null ? USUAL_DAYS : String(days));
  const change = useChangeSettings(() => undefined);
  const wanted = isOn ? daysOf(text, most) : null;
  const isWrong = isOn && wanted === null;
  const isFixed = forbidden !== undefined && days === null;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!isWrong) change.mutate(bodyOf(wanted));
  };
  return (
    <form onSubmit={submit} noValidate>
      <Stack gap="sm">
        <Switch
          label={label}
          checked={isOn}
          disabled={isFixed}
          onChange={(event) => {
            setOn(event.currentTarget.checked);
            change.reset();
          }}
        />
        {isOn && (
          <TextInput
            label={`Days for “${label}”`}
            description={`From 1 to ${most}. A shorter time holds for what is kept already, too.`}
            inputMode="numeric"
            maw={320}
            value={text}
            error={isWrong && `Enter a whole number from 1 to ${most}.`}
            onChange={(event) => {
              setText(event.currentTarget.value.trim());
              change.reset();
            }}
          />
        )}
        {change.error && <ErrorState error={change.error} title="The setting was not saved" />}
        <Group gap="sm">
          <Button
            type="submit"
            loading={change.isPending}
            disabled={isWrong || wanted === days || isFixed}
          >
            Save
          </Button>
          <Deletion {...deletion} />
        </Group>
      </Stack>
    </form>
  );
}

function Deletion({ label, question, says, body }: DaysSettingProps["deletion"]) {
  const [isAsked, ask] = useState(false);
  const [isDone, setDone] = useState(false);
  const remove = useChangeSettings(() => {
    ask(false);
    setDone(true);
  });
  return (
    <>
      <Button variant="default" onClick={() => ask(true)}>
        {label}
      </Button>
      {isDone && (
        <Alert color="teal" role="status" py={6}>
          Deleted.
        </Alert>
      )}
      <ConfirmModal
        opened={isAsked}
        title={question}
        confirm="Delete"
        busy={remove.isPending}
        error={remove.error}
        onConfirm={() => remove.mutate(body)}
        onClose={() => {
          remove.reset();
          ask(false);
        }}
      >
        {says}
      </ConfirmModal>
    </>
  );
}
