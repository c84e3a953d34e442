import {
  Button,
  Card,
  Checkbox,
  Group,
  Kbd,
  NumberInput,
  Select,
  SimpleGrid,
  Text,
  Textarea,
} from "@mantine/core";
import { getHotkeyHandler } from "@mantine/hooks";
import { IconPlayerPlay, IconPlayerStop } from "@tabler/icons-react";
import type { FormEvent } from "react";
import { PARAMS, type Params, type Setup, TIERS } from "./model";

interface PromptFormProps {
  setup: Setup;
  onChange: (setup: Setup) => void;
  running: boolean;
  onRun: () => void;
  onStop: () => void;
  keepsTurns: boolean;
  onKeepsTurns: (keeps: boolean) => void;
}

export function PromptForm(props: PromptFormProps) {
  const { setup, onChange, running, onRun, onStop } = props;
  const canRun = setup.prompt.trim() !== "" && !running;
  const run = () => {
    if (canRun) onRun();
  };
  return (
    <Card
      component="form"
      padding="md"
      onSubmit={(event: FormEvent) => {
        event.preventDefault();
        run();
      }}
      onKeyDown={getHotkeyHandler([["mod+Enter", run]])}
    >
      <SimpleGrid cols={{ base: 1, md: 2 }}>
        <Textarea
          label="Prompt"
          placeholder="How do I reset my device?"
          autosize
          minRows={3}
          maxRows={10}
          value={setup.prompt}
          onChange={(event) => onChange({ ...setup, prompt: event.currentTarget.value })}
        />
        <Textarea
          label="System message"
          placeholder="Optional"
          autosize
          minRows={3}
          maxRows={10}
          value={setup.system}
          onChange={(event) => onChange({ ...setup, system: event.currentTarget.value })}
        />
      </SimpleGrid>
      <Parameters params={setup.params} onChange={(params) => onChange({ ...setup, params })} />
      <Group mt="md" justify="space-between">
        <Group gap="lg">
          <Checkbox
            label="Send to all models at once"
            checked={setup.isTogether}
            onChange={(event) => onChange({ ...setup, isTogether: event.currentTarget.checked })}
          />
          <Checkbox
            label="Keep conversation history"
            checked={props.keepsTurns}
            onChange={(event) => props.onKeepsTurns(event.currentTarget.checked)}
          />
        </Group>
        <Group>
          <Text size="xs" c="dimmed" visibleFrom="sm">
            {running ? <Kbd size="xs">Esc</Kbd> : <Kbd size="xs">Ctrl + Enter</Kbd>}
          </Text>
          {running ? (
            <Button
              key="stop"
              color="red"
              variant="light"
              leftSection={<IconPlayerStop size={16} />}
              onClick={onStop}
            >
              Stop
            </Button>
          ) : (
            <Button
              key="run"
              type="submit"
              leftSection={<IconPlayerPlay size={16} />}
              disabled={!canRun}
            >
              {setup.models.length === 1 ? "Send" : `Send to ${setup.models.length} models`}
            </Button>
          )}
        </Group>
      </Group>
    </Card>
  );
}

interface ParametersProps {
  params: Params;
  onChange: (params: Params) => void;
}

const MAX_SEED = 2 ** 31 - 1;

function Parameters({ params, onChange }: ParametersProps) {
  const number = (value: string | number, otherwise: number) =>
    typeof value === "number" ? value : otherwise;
  return (
    <SimpleGrid cols={{ base: 2, sm: 3, lg: 6 }} mt="md">
      <NumberInput
        label="Max tokens"
        suffix=" tokens"
        min={1}
        max={4096}
        value={params.maxTokens}
        onChange={(value) => onChange({ ...params, maxTokens: number(value, PARAMS.maxTokens) })}
      />
      <NumberInput
        label="Temperature"
        min={0}
        max={2}
        step={0.1}
        decimalScale={2}
        value={params.temperature}
        onChange={(value) => onChange({ ...params, temperature: number(value, 0) })}
      />
      <NumberInput
        label="Top p"
        min={0.01}
        max={1}
        step={0.05}
        decimalScale={2}
        value={params.topP}
        onChange={(value) => onChange({ ...params, topP: number(value, 1) })}
      />
      <NumberInput
        label="Seed"
        placeholder="random"
        min={0}
        max={MAX_SEED}
        allowDecimal={false}
        value={params.seed ?? ""}
        onChange={(value) =>
          onChange({ ...params, seed: typeof value === "number" ? value : null })
        }
      />
      <Select
        label="Service tier"
        data={[...TIERS]}
        value={params.tier}
        allowDeselect={false}
        onChange={(value) =>
          onChange({ ...params, tier: TIERS.find((tier) => tier === value) ?? "auto" })
        }
      />
      <Textarea
        label="Stop sequences"
        autosize
        minRows={1}
        maxRows={4}
        value={params.stop}
        onChange={(event) => onChange({ ...params, stop: event.currentTarget.value })}
      />
    </SimpleGrid>
  );
}
