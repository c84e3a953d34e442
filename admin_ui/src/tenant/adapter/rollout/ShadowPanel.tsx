import { Button, Group, NumberInput, Select, Stack, Table, Text } from "@mantine/core";
import { useState } from "react";
import type { Schemas } from "../../../api/client";
import { formatCount, formatMs } from "../../../components/format";
import { Panel } from "../../../components/Panel";
import { Scrollable } from "../../../components/Scrollable";
import { ErrorState } from "../../../components/states";
import { type AliasChanges, useShadow } from "./queries";

interface ShadowPanelProps {
  name: string;
  alias: string;
  now: Schemas["Alias"] | undefined;
  versions: readonly Schemas["AdapterVersion"][];
  changes: AliasChanges;
}

const MOST = 100;

/** A copy of a part of the requests on another version; its answers are compared, never sent. */
export function ShadowPanel({ name, alias, now, versions, changes }: ShadowPanelProps) {
  const report = useShadow(name, alias, now !== undefined);
  const running = now?.shadow ?? null;
  const [version, setVersion] = useState<string | null>(running ? String(running.version) : null);
  const [percent, setPercent] = useState<string | number>(running?.percent ?? 10);
  const { put, path } = changes;
  const set = (shadow: Schemas["Shadow"] | null) =>
    put.mutate({ params: { path }, body: { shadow } });
  return (
    <Panel
      title="Shadow traffic"
      note={
        running
          ? `${running.percent}% of requests also run on version ${running.version}`
          : "Copies of requests run on another version. The responses are compared and billed, but not returned."
      }
      action={
        running && (
          <Button size="xs" variant="default" loading={put.isPending} onClick={() => set(null)}>
            Stop
          </Button>
        )
      }
    >
      <Stack gap="sm">
        {!running && (
          <Group align="flex-end" gap="xs">
            <Select
              label="Version"
              w={110}
              data={versions.map((each) => String(each.version))}
              value={version}
              onChange={setVersion}
            />
            <NumberInput
              label="Share of requests"
              w={150}
              suffix="%"
              min={1}
              max={MOST}
              value={percent}
              onChange={setPercent}
            />
            <Button
              variant="default"
              disabled={version === null || typeof percent !== "number" || now === undefined}
              loading={put.isPending}
              onClick={() =>
                typeof percent === "number" && set({ version: Number(version), percent })
              }
            >
              Start
            </Button>
          </Group>
        )}
        {put.error ? <ErrorState error={put.error} /> : null}
        {report.data && report.data.summary.length > 0 ? (
          <Summary summary={report.data.summary} />
        ) : (
          <Text size="sm" c="dimmed">
            No responses compared yet.
          </Text>
        )}
      </Stack>
    </Panel>
  );
}

function Summary({ summary }: { summary: Schemas["ShadowSummary"][] }) {
  const medians = (side: Schemas["ShadowMedians"]) =>
    side.first_token_ms === null ? "–" : formatMs(side.first_token_ms);
  return (
    <Scrollable label="Shadow responses by version">
      <Table aria-label="Shadow responses" verticalSpacing={6} miw={480}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Version</Table.Th>
            <Table.Th ta="right">Compared</Table.Th>
            <Table.Th ta="right">Failed</Table.Th>
            <Table.Th ta="right">Equal (greedy only)</Table.Th>
            <Table.Th ta="right">TTFT (returned response)</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {summary.map((each) => (
            <Table.Tr key={each.version}>
              <Table.Td>{each.version}</Table.Td>
              <Table.Td ta="right">{formatCount(each.compared)}</Table.Td>
              <Table.Td ta="right">{formatCount(each.failed)}</Table.Td>
              <Table.Td ta="right">
                {formatCount(each.greedy_equal)} of {formatCount(each.greedy)}
              </Table.Td>
              <Table.Td ta="right">
                {medians(each.shadow)} ({medians(each.answer)})
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Scrollable>
  );
}
