/** One prompt asked of several adapters and versions, side by side, with what each took and cost. */

import { Button, Group, SimpleGrid, Text } from "@mantine/core";
import { IconLink, IconPlus, IconTrash } from "@tabler/icons-react";
import { useCallback, useEffect, useRef, useState } from "react";
import { PageHeader } from "../../components/PageHeader";
import { ErrorState, TableSkeleton } from "../../components/states";
import { AnswerPane } from "./AnswerPane";
import { CodePanel } from "./CodePanel";
import { chatRequest, encodeSetup, MAX_PANES, type Setup } from "./model";
import { PromptForm } from "./PromptForm";
import { type ModelOption, useAskable, useModelOptions } from "./queries";
import { namesOf, type Told, useSetup, useTold } from "./useSetup";
import { isRunning, type Stream, useStream } from "./useStream";

export default function Page() {
  const { options, error, isPending, refetch } = useModelOptions();
  const told = useTold();
  const askable = useAskable(namesOf(told));
  const failed = error ?? askable.error;
  const isReady = options !== undefined && askable.data !== undefined;
  const again = () => Promise.all([refetch(), askable.refetch()]);
  return (
    <>
      <PageHeader
        title="Playground"
        description="Compare adapters and versions on one prompt. Requests are billed like any other."
      />
      {(isPending || askable.isPending) && <TableSkeleton />}
      {failed && !isReady && <ErrorState error={failed} onRetry={again} />}
      {isReady && <Comparison options={options} told={told} askable={askable.data} />}
    </>
  );
}

interface ComparisonProps {
  options: ModelOption[];
  told: Told;
  askable: string[];
}

function Comparison({ options, told, askable }: ComparisonProps) {
  const [setup, setSetup] = useSetup(options, told, askable);
  const [keepsTurns, setKeepsTurns] = useState(false);
  // As many streams as there can be panes: hooks are not made in a loop that changes.
  const streams = [useStream(), useStream(), useStream(), useStream()].slice(
    0,
    setup.models.length,
  );
  const running = streams.some(({ answer }) => isRunning(answer));
  const ask = useAsk(setup, streams, keepsTurns);
  const remove = (index: number) =>
    setSetup({ ...setup, models: setup.models.filter((_, at) => at !== index) });
  return (
    <>
      <PromptForm
        setup={setup}
        onChange={setSetup}
        running={running}
        onRun={ask.run}
        onStop={ask.stop}
        keepsTurns={keepsTurns}
        onKeepsTurns={setKeepsTurns}
      />
      <SimpleGrid cols={{ base: 1, md: Math.min(setup.models.length, 2) }} mt="md">
        {streams.map((stream, index) => (
          <AnswerPane
            // biome-ignore lint/suspicious/noArrayIndexKey: a pane is its place
            key={index}
            name={`Response ${index + 1}`}
            model={setup.models[index] ?? null}
            onModel={(model) =>
              setSetup({
                ...setup,
                models: setup.models.map((each, at) => (at === index ? model : each)),
              })
            }
            onRemove={setup.models.length > 1 && !running ? () => remove(index) : undefined}
            stream={stream}
          />
        ))}
      </SimpleGrid>
      <Group justify="space-between" mt="md">
        <Group gap="xs">
          <Button
            size="xs"
            variant="default"
            leftSection={<IconPlus size={14} />}
            disabled={setup.models.length >= MAX_PANES || running}
            onClick={() =>
              setSetup({ ...setup, models: [...setup.models, options[0]?.value ?? ""] })
            }
          >
            Add model
          </Button>
          {streams.some(({ turns }) => turns.length > 0) && (
            <Button
              size="xs"
              variant="default"
              leftSection={<IconTrash size={14} />}
              disabled={running}
              onClick={() => {
                for (const stream of streams) stream.forget();
              }}
            >
              Clear conversation
            </Button>
          )}
          <ShareButton setup={setup} />
        </Group>
        <Text size="xs" c="dimmed">
          {setup.isTogether
            ? "Requests run at the same time and share the engine, so their times cannot be compared."
            : "Requests run one after the other, so they do not slow each other down."}
        </Text>
      </Group>
      <CodePanel setup={setup} turns={keepsTurns ? (streams[0]?.turns ?? []) : []} />
    </>
  );
}

/** Asks each pane's model, at once or in turn; Escape stops. */
function useAsk(setup: Setup, streams: readonly Stream[], keepsTurns: boolean) {
  const stopped = useRef(false);
  const stop = useCallback(() => {
    stopped.current = true;
    for (const stream of streams) stream.stop();
  }, [streams]);
  const run = async () => {
    stopped.current = false;
    if (!keepsTurns) for (const stream of streams) stream.forget();
    const asked = streams.map((stream, index) => {
      const request = chatRequest(setup, setup.models[index] ?? "", keepsTurns ? stream.turns : []);
      return () => stream.start(request, setup.prompt);
    });
    if (setup.isTogether) {
      await Promise.all(asked.map((each) => each()));
      return;
    }
    for (const each of asked) {
      if (stopped.current) return;
      await each();
    }
  };
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape") stop();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [stop]);
  return { run, stop };
}

function ShareButton({ setup }: { setup: Setup }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    const address = new URL(window.location.href);
    address.search = "";
    address.hash = encodeSetup(setup);
    window.history.replaceState(null, "", address);
    await navigator.clipboard?.writeText(address.href).catch(() => undefined);
    setCopied(true);
    setTimeout(() => setCopied(false), 2_000);
  };
  return (
    <Button size="xs" variant="default" leftSection={<IconLink size={14} />} onClick={copy}>
      {isCopied ? "Link copied" : "Copy link"}
    </Button>
  );
}
