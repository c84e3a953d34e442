import { Box, Button, Group, Slider, Stack, Text, TextInput } from "@mantine/core";
import { useState } from "react";
import type { Schemas } from "../../../api/client";
import { Panel } from "../../../components/Panel";
import { ErrorState } from "../../../components/states";
import { reweigh, sameTargets, sendable, type Target } from "./model";
import type { AliasChanges } from "./queries";
import { WeightBar } from "./WeightBar";

interface WeightsFormProps {
  versions: readonly Schemas["AdapterVersion"][];
  targets: readonly Target[];
  changes: AliasChanges;
}

const MARKS = [5, 25, 50, 100].map((value) => ({ value, label: `${value}%` }));

/** Weights by hand, at once. */
export function WeightsForm({ versions, targets, changes }: WeightsFormProps) {
  const [draft, setDraft] = useState<readonly Target[]>(targets);
  const [reason, setReason] = useState("");
  const { put, path } = changes;
  const weightOf = (version: number) =>
    draft.find((target) => target.version === version)?.weight ?? 0;
  const isSame = sameTargets(draft, targets);
  const apply = () =>
    put.mutate({
      params: { path },
      body: { targets: sendable(draft), ...(reason.trim() ? { reason: reason.trim() } : {}) },
    });
  return (
    <Panel
      title="Traffic weights"
      note="Applied immediately. A caller stays on its version unless the new weights require a move."
    >
      <Stack gap="lg">
        {[...versions]
          .sort((a, b) => b.version - a.version)
          .map(({ version }) => (
            <Box key={version} pl={4} pr={18}>
              <Group justify="space-between" mb={4}>
                <Text size="sm" fw={550}>
                  Version {version}
                </Text>
                <Text size="sm" className="numbers">
                  {weightOf(version)}%
                </Text>
              </Group>
              <Slider
                value={weightOf(version)}
                onChange={(weight) => setDraft(reweigh(draft, version, weight))}
                marks={MARKS}
                label={(weight) => `${weight}%`}
                thumbLabel={`Weight of version ${version}`}
                mb="md"
              />
            </Box>
          ))}
        <WeightBar targets={draft} />
        <TextInput
          label="Reason (shown in the history)"
          value={reason}
          onChange={(event) => setReason(event.currentTarget.value)}
        />
        {put.error ? <ErrorState title="The weights were not changed" error={put.error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" disabled={isSame} onClick={() => setDraft(targets)}>
            Reset
          </Button>
          <Button disabled={isSame} loading={put.isPending} onClick={apply}>
            Apply weights
          </Button>
        </Group>
      </Stack>
    </Panel>
  );
}
