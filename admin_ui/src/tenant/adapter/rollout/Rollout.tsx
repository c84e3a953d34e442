/** The tab of what a name of the adapter means: its versions' weights, a roll-out in stages, and the way back. */

import {
  Badge,
  Box,
  Button,
  Code,
  Group,
  Select,
  SimpleGrid,
  Stack,
  Text,
  TextInput,
} from "@mantine/core";
import { IconArrowBackUp, IconPlus } from "@tabler/icons-react";
import { useState } from "react";
import type { Schemas } from "../../../api/client";
import { Panel } from "../../../components/Panel";
import { useParam } from "../../../components/SidePanel";
import { ErrorState } from "../../../components/states";
import { type Adapter, DEFAULT_ALIAS } from "../../adapters/model";
import type { TabProps } from "../tabs";
import { EvaluationPanel } from "./EvaluationPanel";
import { HistoryPanel } from "./HistoryPanel";
import { targetsText } from "./model";
import { useAliasChanges, useHistory, useRollout } from "./queries";
import { RolloutPanel } from "./RolloutPanel";
import { ShadowPanel } from "./ShadowPanel";
import { StagedForm } from "./StagedForm";
import { TrafficPanel } from "./TrafficPanel";
import { VersionTimeline } from "./VersionTimeline";
import { WeightBar } from "./WeightBar";
import { WeightsForm } from "./WeightsForm";

export default function Rollout({ adapter }: TabProps) {
  const { name } = adapter;
  const [chosen, choose] = useParam("alias");
  const alias = chosen ?? DEFAULT_ALIAS;
  return (
    <>
      <Group justify="space-between" mb="md">
        <Text size="sm" c="dimmed">
          Versions that serve <Code>{alias === DEFAULT_ALIAS ? name : `${name}@${alias}`}</Code>.
          Changes apply from the next request; running requests finish on their version.
        </Text>
        <AliasPicker
          known={adapter.aliases.map((each) => each.alias)}
          alias={alias}
          onChoose={choose}
        />
      </Group>
      <AliasView key={alias} adapter={adapter} alias={alias} />
    </>
  );
}

interface AliasPickerProps {
  known: string[];
  alias: string;
  onChoose: (alias: string) => void;
}

function AliasPicker({ known, alias, onChoose }: AliasPickerProps) {
  const [wanted, setWanted] = useState<string | null>(null);
  const names = [...new Set([DEFAULT_ALIAS, ...known, alias])];
  if (wanted !== null)
    return (
      <Group
        component="form"
        gap="xs"
        onSubmit={(event) => {
          event.preventDefault();
          if (wanted.trim() !== "") onChoose(wanted.trim());
          setWanted(null);
        }}
      >
        <TextInput
          size="xs"
          aria-label="Alias name"
          placeholder="beta"
          data-autofocus
          value={wanted}
          onChange={(event) => setWanted(event.currentTarget.value)}
        />
        <Button size="xs" type="submit">
          Add
        </Button>
      </Group>
    );
  return (
    <Group gap="xs">
      <Select
        size="xs"
        aria-label="Alias"
        data={names}
        value={alias}
        allowDeselect={false}
        onChange={(value) => value !== null && onChoose(value)}
      />
      <Button
        size="xs"
        variant="default"
        leftSection={<IconPlus size={14} />}
        onClick={() => setWanted("")}
      >
        Add alias
      </Button>
    </Group>
  );
}

const NONE: readonly Schemas["AliasChange"][] = [];
const SERVING = ["active", "deprecated"];

interface AliasViewProps {
  adapter: Adapter;
  alias: string;
}

function AliasView({ adapter, alias }: AliasViewProps) {
  const { name } = adapter;
  const rollout = useRollout(name, alias);
  const history = useHistory(name, alias);
  const changes = useAliasChanges(name, alias);
  const now = adapter.aliases.find((each) => each.alias === alias);
  const versions = adapter.versions.filter(({ state }) => SERVING.includes(state));
  const isRunning = rollout.data?.state === "running";
  return (
    <Stack>
      <Panel
        title="Currently serving"
        note={now ? targetsText(now.targets) : newestText(alias, versions)}
        action={
          <FlipBack
            changes={changes}
            previous={now === undefined ? beforeNewest(alias, versions) : null}
            hasHistory={(history.data?.length ?? 0) > 0}
          />
        }
      >
        <WeightBar targets={now?.targets ?? newestOf(alias, versions)} />
        {changes.rollBack.error ? (
          <Box mt="sm">
            <ErrorState title="The rollback failed" error={changes.rollBack.error} />
          </Box>
        ) : null}
      </Panel>
      {rollout.data && (
        <RolloutPanel rollout={rollout.data} changes={changes} readAt={rollout.dataUpdatedAt} />
      )}
      <VersionTimeline
        versions={adapter.versions}
        targets={now?.targets ?? newestOf(alias, versions)}
      />
      {!isRunning && versions.length > 0 && (
        <SimpleGrid cols={{ base: 1, lg: 2 }}>
          <WeightsForm
            key={targetsText(now?.targets)}
            versions={versions}
            targets={now?.targets ?? newestOf(alias, versions)}
            changes={changes}
          />
          <StagedForm versions={versions} current={now?.targets ?? []} changes={changes} />
        </SimpleGrid>
      )}
      <SimpleGrid cols={{ base: 1, lg: 2 }}>
        <EvaluationPanel adapter={name} />
        <ShadowPanel name={name} alias={alias} now={now} versions={versions} changes={changes} />
      </SimpleGrid>
      <TrafficPanel adapter={name} changes={history.data ?? NONE} />
      <HistoryPanel history={history} />
    </Stack>
  );
}

/** Without the alias `prod` a bare name means the newest active version. */
function newestOf(alias: string, versions: Schemas["AdapterVersion"][]): Schemas["AliasTarget"][] {
  const active = versions.filter(({ state }) => state === "active");
  if (alias !== DEFAULT_ALIAS || active.length === 0) return [];
  return [{ version: Math.max(...active.map(({ version }) => version)), weight: 100 }];
}

/** The version that the name goes back to while there is no alias. */
function beforeNewest(alias: string, versions: Schemas["AdapterVersion"][]): number | null {
  const active = versions.filter(({ state }) => state === "active").map(({ version }) => version);
  const [, previous] = active.sort((one, other) => other - one);
  return alias === DEFAULT_ALIAS ? (previous ?? null) : null;
}

function newestText(alias: string, versions: Schemas["AdapterVersion"][]): string {
  const [newest] = newestOf(alias, versions);
  return newest
    ? `v${newest.version}, the newest active version (there is no alias ${DEFAULT_ALIAS} yet)`
    : "No versions: this alias does not exist yet";
}

interface FlipBackProps {
  changes: ReturnType<typeof useAliasChanges>;
  /** Without an alias: the version before the newest. */
  previous: number | null;
  hasHistory: boolean;
}

/** One click, for it is needed in a hurry; said again, it takes itself back. */
function FlipBack({ changes, previous, hasHistory }: FlipBackProps) {
  const { rollBack, path } = changes;
  return (
    <Group gap="xs">
      {rollBack.isSuccess && <Badge role="status">rolled back</Badge>}
      <Button
        size="xs"
        variant="default"
        leftSection={<IconArrowBackUp size={15} />}
        loading={rollBack.isPending}
        disabled={!hasHistory && previous === null}
        onClick={() => rollBack.mutate({ params: { path } })}
      >
        Roll back
      </Button>
      <Text size="xs" c="dimmed" visibleFrom="sm">
        {hasHistory || previous === null
          ? "reverts the last change"
          : `sends all requests to version ${previous}`}
      </Text>
    </Group>
  );
}
