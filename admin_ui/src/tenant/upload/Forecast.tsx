/** What the server says of config and header: would it be accepted, and what will it take. */

import { Alert, Badge, Group, Loader, SimpleGrid, Stack, Table, Text } from "@mantine/core";
import { IconAlertTriangle, IconCircleCheck, IconCircleX } from "@tabler/icons-react";
import type { ReactNode } from "react";
import type { Schemas } from "../../api/client";
import { ApiError, describe } from "../../api/errors";
import { formatBytes, formatCount, formatMoney, formatMs } from "../../components/format";
import { Problems } from "../adapter/Problems";
import type { Candidate, Parcel } from "./folder";

interface ForecastProps {
  of: Candidate;
  parcel: Parcel;
  hasName: boolean;
  preflight: Schemas["Preflight"] | null;
  error: unknown;
  isAsking: boolean;
}

export function Forecast({ of, parcel, hasName, preflight, error, isAsking }: ForecastProps) {
  return (
    <Stack gap="sm" aria-busy={isAsking}>
      <Group gap="xs">
        <Text size="sm" fw={550}>
          {of.folder || of.weights[0]?.name}
        </Text>
        <Badge color="gray">{formatBytes(parcel.weights.whole.size)}</Badge>
        {of.weights.length > 1 && (
          <Badge color="gray">{of.weights.length} files, uploaded as one</Badge>
        )}
        {parcel.template !== null && <Badge color="blue">with chat template</Badge>}
        {parcel.draftLayer !== null && (
          <Badge color="blue">with draft layer, {formatBytes(parcel.draftLayer.whole.size)}</Badge>
        )}
        {isAsking && <Loader size="xs" aria-label="Checking with the server" />}
      </Group>
      {!preflight && parcel.doubts.length > 0 && (
        <Alert
          color="yellow"
          icon={<IconAlertTriangle size={18} />}
          title="This adapter will be rejected"
        >
          {parcel.doubts.map((doubt) => (
            <Text size="sm" key={doubt}>
              {doubt}
            </Text>
          ))}
        </Alert>
      )}
      {!hasName && (
        <Text size="sm" c="dimmed">
          Enter a name to check whether the adapter would be accepted.
        </Text>
      )}
      {error != null && <Unknown error={error} />}
      {hasName && preflight && error == null && <Verdict preflight={preflight} />}
    </Stack>
  );
}

/** Whether the server could not answer now: what is sent may be accepted all the same. */
export function isLater(error: unknown): boolean {
  if (error == null) return false;
  return !(error instanceof ApiError) || error.status === 429 || error.status >= 500;
}

/** A refusal of the plan's or the name's, or a server that cannot say yet: then one may send. */
function Unknown({ error }: { error: unknown }) {
  const later = isLater(error);
  return (
    <Alert
      color={later ? "yellow" : "red"}
      role="alert"
      title={later ? "The server could not check the adapter" : "This adapter would be rejected"}
    >
      {describe(error)}
    </Alert>
  );
}

function Verdict({ preflight }: { preflight: Schemas["Preflight"] }) {
  const { accepted, validation } = preflight;
  const warnings = validation.warnings ?? [];
  if (!accepted)
    return (
      <Alert
        color="red"
        icon={<IconCircleX size={18} />}
        title="This adapter would be rejected. Nothing has been uploaded."
        role="status"
      >
        <Problems problems={validation.problems} label="Reasons" />
      </Alert>
    );
  return (
    <>
      <Alert
        color="teal"
        icon={<IconCircleCheck size={18} />}
        title="This adapter would be accepted"
        role="status"
      >
        The config and the file header are valid. The weights are checked after the upload.
      </Alert>
      {warnings.length > 0 && (
        <Alert color="yellow" icon={<IconAlertTriangle size={18} />} title="Warnings">
          <Problems problems={warnings} label="Warnings" />
        </Alert>
      )}
      <Costs preflight={preflight} />
      <Modules modules={preflight.modules} />
    </>
  );
}

function Costs({ preflight }: { preflight: Schemas["Preflight"] }) {
  const { footprint, sizes, loads, storage } = preflight;
  const size = (tier: string) => sizes.find((each) => each.tier === tier)?.bytes;
  const slowest = loads.findLast(({ ms }) => ms !== null);
  return (
    <SimpleGrid cols={{ base: 2, sm: 4 }} spacing="sm">
      <Figure label="Device memory" hint={footprint && `${formatCount(footprint.pages)} pages`}>
        {written(size("device"))}
      </Figure>
      <Figure label="Host memory">{written(size("host"))}</Figure>
      <Figure
        label="Cold load time"
        hint={slowest ? `from ${slowest.tier}, on average` : "no load measured yet"}
      >
        {slowest?.ms != null ? formatMs(slowest.ms) : "–"}
      </Figure>
      <Figure
        label="Storage, 30 days"
        hint={storage ? "at current prices" : "storage has no price"}
      >
        {storage ? formatMoney(storage.amount, storage.currency) : "–"}
      </Figure>
    </SimpleGrid>
  );
}

function written(bytes: number | undefined): string {
  return bytes === undefined ? "–" : formatBytes(bytes);
}

function Figure(props: { label: string; hint?: string | null; children: ReactNode }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {props.label}
      </Text>
      <Text fw={550} className="numbers">
        {props.children}
      </Text>
      {props.hint && (
        <Text size="xs" c="dimmed">
          {props.hint}
        </Text>
      )}
    </div>
  );
}

function Modules({ modules }: { modules: Schemas["PreflightModule"][] }) {
  return (
    <Table aria-label="Rank by module" verticalSpacing={4} horizontalSpacing="xs">
      <Table.Thead>
        <Table.Tr>
          <Table.Th>Module</Table.Th>
          <Table.Th ta="right">Layers</Table.Th>
          <Table.Th ta="right">Rank</Table.Th>
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {modules.map(({ module, layers, rank_min, rank_max }) => (
          <Table.Tr key={module}>
            <Table.Td>{module}</Table.Td>
            <Table.Td ta="right">{layers}</Table.Td>
            <Table.Td ta="right">
              {rank_min === rank_max ? rank_min : `${rank_min} to ${rank_max}`}
            </Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}
