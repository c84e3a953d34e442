import {
  Button,
  FileButton,
  Group,
  Modal,
  MultiSelect,
  NumberInput,
  Select,
  Stack,
  Text,
  Textarea,
} from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { IconFileUpload } from "@tabler/icons-react";
import { useState } from "react";
import { formatCount } from "../../components/format";
import { ErrorState } from "../../components/states";
import { parseItems, readItems, SCORINGS, type Scoring } from "./model";
import { useAdapterNamed, useAdaptersNamed, useCreate } from "./queries";

interface NewEvaluationProps {
  opened: boolean;
  /** The adapter that is chosen to begin with. */
  adapter: string | null;
  onClose: () => void;
  onCreated: (id: string) => void;
}

export function NewEvaluation({ opened, adapter, onClose, onCreated }: NewEvaluationProps) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      title="Evaluate adapter"
      size="lg"
      closeOnClickOutside={false}
    >
      {opened && <Form first={adapter} onClose={onClose} onCreated={onCreated} />}
    </Modal>
  );
}

interface FormProps {
  first: string | null;
  onClose: () => void;
  onCreated: (id: string) => void;
}

const BASE = "base";
const ASKABLE = ["active", "deprecated"];

function Form({ first, onClose, onCreated }: FormProps) {
  const create = useCreate();
  const [chosen, setChosen] = useState<string | null>(first || null);
  const [typed, setTyped] = useState("");
  const [searched] = useDebouncedValue(typed, 200);
  // The field holds the chosen one's name until something else is typed.
  const found = useAdaptersNamed(searched === chosen ? "" : searched).data ?? [];
  const wanted = chosen ?? found[0]?.name ?? null;
  const adapter = useAdapterNamed(wanted).data;
  const [subjects, setSubjects] = useState<string[] | null>(null);
  const [scoring, setScoring] = useState<Scoring>("contains");
  const [text, setText] = useState("");
  const [maxTokens, setMaxTokens] = useState<string | number>(64);
  const names = found.map(({ name }) => name);
  const versions =
    adapter?.versions.filter(({ state }) => ASKABLE.includes(state)).map((v) => v.version) ?? [];
  const asked = subjects ?? [...versions.slice(0, 2).map(String), BASE];
  const items = readItems(text, scoring);
  const kind = SCORINGS.find(({ value }) => value === scoring);
  const send = () =>
    create.mutate(
      {
        body: {
          adapter: adapter?.name ?? "",
          versions: asked.map((each) => (each === BASE ? BASE : Number(each))),
          scoring,
          items: parseItems(text),
          max_tokens: typeof maxTokens === "number" ? maxTokens : 64,
        },
      },
      { onSuccess: ({ id }) => onCreated(id) },
    );
  return (
    <Stack>
      <Group grow align="flex-start">
        <Select
          label="Adapter"
          data={wanted === null || names.includes(wanted) ? names : [wanted, ...names]}
          value={wanted}
          allowDeselect={false}
          searchable
          nothingFoundMessage="No adapters match"
          onSearchChange={setTyped}
          onChange={(value) => {
            setChosen(value);
            setSubjects(null);
          }}
        />
        <MultiSelect
          label="Versions to evaluate"
          data={[
            ...versions.map((version) => ({ value: String(version), label: `Version ${version}` })),
            { value: BASE, label: "Base model" },
          ]}
          value={asked}
          onChange={setSubjects}
          maxValues={8}
        />
      </Group>
      <Group grow align="flex-start">
        <Select
          label="Scoring method"
          data={SCORINGS.map(({ value, label }) => ({ value, label }))}
          value={scoring}
          allowDeselect={false}
          onChange={(value) =>
            setScoring(SCORINGS.find((k) => k.value === value)?.value ?? scoring)
          }
        />
        <NumberInput
          label="Max tokens"
          suffix=" tokens"
          min={1}
          max={1024}
          value={maxTokens}
          onChange={setMaxTokens}
        />
      </Group>
      <Textarea
        label="Items, one JSON object per line"
        description={`Each item needs ${kind?.needs}, and prompt or messages.`}
        placeholder={kind?.example}
        autosize
        minRows={6}
        maxRows={14}
        ff="monospace"
        value={text}
        error={items.problem}
        onChange={(event) => setText(event.currentTarget.value)}
      />
      <Group justify="space-between">
        <FileButton
          accept=".jsonl,.json,.txt,application/jsonl"
          onChange={async (file) => file && setText(await file.text())}
        >
          {(props) => (
            <Button
              {...props}
              size="xs"
              variant="default"
              leftSection={<IconFileUpload size={15} />}
            >
              Load from file
            </Button>
          )}
        </FileButton>
        <Text size="xs" c="dimmed">
          {formatCount(items.count * asked.length)} requests
        </Text>
      </Group>
      {create.error ? (
        <ErrorState title="The evaluation was not started" error={create.error} />
      ) : null}
      <Group justify="flex-end">
        <Button variant="default" onClick={onClose}>
          Cancel
        </Button>
        <Button
          loading={create.isPending}
          disabled={items.count === 0 || items.problem !== null || asked.length === 0 || !adapter}
          onClick={send}
        >
          Evaluate
        </Button>
      </Group>
    </Stack>
  );
}
