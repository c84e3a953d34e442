import {
  ActionIcon,
  Button,
  Group,
  NumberInput,
  SegmentedControl,
  Select,
  SimpleGrid,
  Stack,
  Text,
  TextInput,
} from "@mantine/core";
import { IconPlus, IconX } from "@tabler/icons-react";
import { useState } from "react";
import type { Schemas } from "../../../api/client";
import { Panel } from "../../../components/Panel";
import { ErrorState } from "../../../components/states";
import { presetStages, type Target } from "./model";
import type { AliasChanges } from "./queries";

interface StagedFormProps {
  versions: readonly Schemas["AdapterVersion"][];
  current: readonly Target[];
  changes: AliasChanges;
}

type Unit = "time" | "requests";
type Stage = Schemas["Stage"];

/** Requests go to a version in stages, on by themselves and back by themselves. */
export function StagedForm({ versions, current, changes }: StagedFormProps) {
  const newest = Math.max(...versions.map(({ version }) => version));
  const [version, setVersion] = useState(String(newest));
  const [unit, setUnit] = useState<Unit>("time");
  const [stages, setStages] = useState<Stage[]>(() => presetStages("time"));
  const [guard, setGuard] = useState<Schemas["Guard"]>({
    error_rate: 0.05,
    ttft_ratio: 1.5,
    score_drop: null,
    min_requests: 20,
  });
  const [reason, setReason] = useState("");
  const { begin, path } = changes;
  const switchTo = (next: Unit) => {
    setUnit(next);
    setStages(presetStages(next));
  };
  const start = () =>
    begin.mutate({
      params: { path },
      body: {
        version: Number(version),
        stages,
        guard,
        ...(reason.trim() ? { reason: reason.trim() } : {}),
      },
    });
  return (
    <Panel
      title="Staged rollout"
      note="Advances through the stages automatically and rolls back if a guard rail is exceeded."
    >
      <Stack>
        <Group align="flex-end" grow>
          <Select
            label="New version"
            data={versions
              .map((each) => String(each.version))
              .sort((a, b) => Number(b) - Number(a))}
            value={version}
            allowDeselect={false}
            onChange={(value) => value !== null && setVersion(value)}
          />
          <SegmentedControl
            aria-label="Advance by"
            data={[
              { value: "time", label: "Time" },
              { value: "requests", label: "Requests" },
            ]}
            value={unit}
            onChange={(value) => switchTo(value === "requests" ? "requests" : "time")}
          />
        </Group>
        <Stages stages={stages} unit={unit} onChange={setStages} />
        <GuardFields guard={guard} onChange={setGuard} />
        <TextInput
          label="Reason (shown in the history)"
          value={reason}
          onChange={(event) => setReason(event.currentTarget.value)}
        />
        {begin.error ? (
          <ErrorState title="The rollout was not started" error={begin.error} />
        ) : null}
        {current.length === 0 && (
          <Text size="xs" c="dimmed">
            Set the traffic weights of this alias first. The rollout needs a version to roll back
            to.
          </Text>
        )}
        <Group justify="flex-end">
          <Button
            loading={begin.isPending}
            disabled={stages.length === 0 || current.length === 0}
            onClick={start}
          >
            Start rollout
          </Button>
        </Group>
      </Stack>
    </Panel>
  );
}

interface StagesProps {
  stages: Stage[];
  unit: Unit;
  onChange: (stages: Stage[]) => void;
}

const MINUTE = 60;

function Stages({ stages, unit, onChange }: StagesProps) {
  const change = (index: number, part: Partial<Stage>) =>
    onChange(stages.map((stage, at) => (at === index ? { ...stage, ...part } : stage)));
  return (
    <Stack gap="xs">
      {stages.map((stage, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: a stage is its place
        <Group key={index} gap="xs" align="flex-end" wrap="nowrap">
          <NumberInput
            size="xs"
            aria-label={`Share in stage ${index + 1}`}
            suffix="%"
            min={1}
            max={100}
            value={stage.percent}
            onChange={(value) => typeof value === "number" && change(index, { percent: value })}
          />
          {unit === "time" ? (
            <NumberInput
              size="xs"
              aria-label={`Minutes in stage ${index + 1}`}
              suffix=" min"
              min={0}
              decimalScale={1}
              value={(stage.after_s ?? 0) / MINUTE}
              onChange={(value) =>
                typeof value === "number" && change(index, { after_s: value * MINUTE })
              }
            />
          ) : (
            <NumberInput
              size="xs"
              aria-label={`Requests in stage ${index + 1}`}
              suffix=" requests"
              min={1}
              value={stage.after_requests ?? 1}
              onChange={(value) =>
                typeof value === "number" && change(index, { after_requests: value })
              }
            />
          )}
          <ActionIcon
            variant="subtle"
            color="gray"
            aria-label={`Remove stage ${index + 1}`}
            disabled={stages.length < 2}
            onClick={() => onChange(stages.filter((_, at) => at !== index))}
          >
            <IconX size={15} />
          </ActionIcon>
        </Group>
      ))}
      <Group>
        <Button
          size="compact-xs"
          variant="subtle"
          leftSection={<IconPlus size={13} />}
          onClick={() => onChange([...stages, { ...(stages.at(-1) ?? {}), percent: 100 }])}
        >
          Add stage
        </Button>
      </Group>
    </Stack>
  );
}

interface GuardFieldsProps {
  guard: Schemas["Guard"];
  onChange: (guard: Schemas["Guard"]) => void;
}

function GuardFields({ guard, onChange }: GuardFieldsProps) {
  const orNull = (value: string | number) => (typeof value === "number" ? value : null);
  return (
    <SimpleGrid cols={{ base: 1, xs: 2 }}>
      <NumberInput
        label="Max. error rate increase"
        description="Percentage points. Leave empty to skip this check"
        suffix=" points"
        min={0}
        max={100}
        decimalScale={1}
        value={
          guard.error_rate === null || guard.error_rate === undefined ? "" : guard.error_rate * 100
        }
        onChange={(value) => {
          const points = orNull(value);
          onChange({ ...guard, error_rate: points === null ? null : points / 100 });
        }}
      />
      <NumberInput
        label="Max. TTFT"
        description="Multiple of the previous version's median"
        suffix=" x"
        min={1.01}
        step={0.1}
        decimalScale={2}
        value={guard.ttft_ratio ?? ""}
        onChange={(value) => onChange({ ...guard, ttft_ratio: orNull(value) })}
      />
      <NumberInput
        label="Max. score drop"
        description="In the latest evaluation of both. Leave empty to skip this check"
        min={0}
        step={0.01}
        decimalScale={3}
        value={guard.score_drop ?? ""}
        onChange={(value) => onChange({ ...guard, score_drop: orNull(value) })}
      />
      <NumberInput
        label="Minimum sample"
        description="Requests to the new version"
        suffix=" requests"
        min={1}
        value={guard.min_requests}
        onChange={(value) => onChange({ ...guard, min_requests: orNull(value) ?? 20 })}
      />
    </SimpleGrid>
  );
}
