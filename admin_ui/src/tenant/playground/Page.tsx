/** The same prompt, streamed from two models side by side. */

import { Button, Card, Group, Kbd, NumberInput, SimpleGrid, Text, Textarea } from "@mantine/core";
import { getHotkeyHandler } from "@mantine/hooks";
import { IconPlayerPlay, IconPlayerStop } from "@tabler/icons-react";
import { type FormEvent, useState } from "react";
import { useSearchParams } from "react-router";
import type { ChatRequest } from "../../api/chat";
import { type Schemas, withErrors } from "../../api/client";
import { useApi } from "../../api/context";
import { PageHeader } from "../../components/PageHeader";
import { ErrorState, TableSkeleton } from "../../components/states";
import { AnswerPane, type ModelOption } from "./AnswerPane";
import { isRunning, useStream } from "./useStream";

export default function Page() {
  const { hooks } = useApi();
  const { data, error, isPending, refetch } = withErrors(hooks.useQuery("get", "/v1/models"));
  return (
    <>
      <PageHeader
        title="Playground"
        description="Ask two adapters the same question and see both answers as they are generated. Requests here are metered like any other."
      />
      {isPending && <TableSkeleton />}
      {error && !data && <ErrorState error={error} onRetry={() => refetch()} />}
      {data && <Comparison models={data.data} />}
    </>
  );
}

function firstChoices(models: Schemas["ModelCard"][], wanted: string | null): [string, string] {
  const adapters = models.filter((model) => model.parent).map((model) => model.id);
  const base = models.find((model) => !model.parent)?.id ?? "";
  const left =
    wanted && models.some((model) => model.id === wanted) ? wanted : (adapters[0] ?? base);
  const right = adapters.find((id) => id !== left) ?? base;
  return [left, right];
}

function Comparison({ models }: { models: Schemas["ModelCard"][] }) {
  const [search] = useSearchParams();
  const [first] = useState(() => firstChoices(models, search.get("left")));
  const [left, setLeft] = useState<string | null>(first[0]);
  const [right, setRight] = useState<string | null>(first[1]);
  const one = useStream();
  const two = useStream();
  const running = isRunning(one.answer) || isRunning(two.answer);
  const options: ModelOption[] = models.map((model) => ({
    value: model.id,
    label: model.parent ? model.id : `${model.id} (base model)`,
  }));

  function run(request: Omit<ChatRequest, "model">) {
    if (left) void one.start({ ...request, model: left });
    if (right) void two.start({ ...request, model: right });
  }

  function stop() {
    one.stop();
    two.stop();
  }

  return (
    <>
      <PromptForm running={running} onRun={run} onStop={stop} />
      <SimpleGrid cols={{ base: 1, md: 2 }} mt="md">
        <AnswerPane
          side="left"
          models={options}
          model={left}
          onModel={setLeft}
          answer={one.answer}
        />
        <AnswerPane
          side="right"
          models={options}
          model={right}
          onModel={setRight}
          answer={two.answer}
        />
      </SimpleGrid>
    </>
  );
}

interface PromptFormProps {
  running: boolean;
  onRun: (request: Omit<ChatRequest, "model">) => void;
  onStop: () => void;
}

function PromptForm({ running, onRun, onStop }: PromptFormProps) {
  const [system, setSystem] = useState("");
  const [prompt, setPrompt] = useState("");
  const [maxTokens, setMaxTokens] = useState<string | number>(160);
  const [temperature, setTemperature] = useState<string | number>(0);

  function run() {
    if (prompt.trim() === "" || running) return;
    const messages: ChatRequest["messages"] = [{ role: "user", content: prompt }];
    if (system.trim() !== "") messages.unshift({ role: "system", content: system });
    onRun({
      messages,
      max_completion_tokens: typeof maxTokens === "number" ? maxTokens : 160,
      temperature: typeof temperature === "number" ? temperature : 0,
    });
  }

  return (
    <Card
      component="form"
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
          value={prompt}
          onChange={(event) => setPrompt(event.currentTarget.value)}
        />
        <Textarea
          label="System message"
          placeholder="Optional"
          autosize
          minRows={3}
          maxRows={10}
          value={system}
          onChange={(event) => setSystem(event.currentTarget.value)}
        />
      </SimpleGrid>
      <Group mt="md" align="flex-end" justify="space-between">
        <Group align="flex-end">
          <NumberInput
            label="Longest answer"
            suffix=" tokens"
            w={150}
            min={1}
            max={4096}
            value={maxTokens}
            onChange={setMaxTokens}
          />
          <NumberInput
            label="Temperature"
            w={120}
            min={0}
            max={2}
            step={0.1}
            decimalScale={2}
            value={temperature}
            onChange={setTemperature}
          />
        </Group>
        <Group>
          <Text size="xs" c="dimmed" visibleFrom="sm">
            <Kbd size="xs">Ctrl</Kbd> + <Kbd size="xs">Enter</Kbd>
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
              disabled={prompt.trim() === ""}
            >
              Ask both
            </Button>
          )}
        </Group>
      </Group>
    </Card>
  );
}
