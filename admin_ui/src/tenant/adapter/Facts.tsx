/** What a version takes, and the numbers of its modules. */

import { SimpleGrid, Table } from "@mantine/core";
import type { Schemas } from "../../api/client";
import {
  formatBytes,
  formatCount,
  formatMoney,
  formatMs,
  formatNorm,
} from "../../components/format";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { Stat } from "../../components/Stat";
import type { AdapterVersion } from "../adapters/model";

interface TakesProps {
  version: AdapterVersion;
  report: Schemas["AdapterReport"];
}

/** Memory, load times by tier, and a month of storing it. */
export function Takes({ version, report: { findings, storage } }: TakesProps) {
  const footprint = findings?.footprint;
  return (
    <SimpleGrid cols={{ base: 1, sm: 3 }}>
      <Stat
        label="Device memory"
        value={footprint ? formatBytes(footprint.pages * footprint.page_bytes) : "–"}
        hint={
          footprint
            ? `${formatCount(footprint.pages)} pages of ${formatBytes(footprint.page_bytes)}; ${formatBytes(version.bytes)} in the store`
            : `${formatBytes(version.bytes)} in the store`
        }
      />
      <Loads loads={findings?.loads ?? []} />
      <Stat
        label="Storage for 30 days"
        value={storage ? formatMoney(storage.amount, storage.currency) : "–"}
        hint={
          storage
            ? `${formatCount(storage.kb_hours)} kB·h at current prices`
            : "storage has no price"
        }
      />
    </SimpleGrid>
  );
}

function Loads({ loads }: { loads: Schemas["Load"][] }) {
  const known = loads.filter(({ tier, ms }) => tier !== "device" && ms !== null);
  const slowest = known.at(-1);
  return (
    <Stat
      label="Cold load"
      value={slowest?.ms != null ? `${formatMs(slowest.ms)} from ${slowest.tier}` : "–"}
      hint={
        known.length > 0
          ? known
              .map(
                ({ tier, ms, how }) =>
                  `${tier} ${formatMs(ms ?? 0)}${how === "measured" ? "" : " (average of other adapters)"}`,
              )
              .join(", ")
          : "no load measured yet"
      }
    />
  );
}

export function Facts({ facts }: { facts: Schemas["AdapterFacts"] }) {
  return (
    <Panel
      title="Modules"
      padding="0"
      note={`${formatCount(facts.parameters)} parameters in ${facts.tensors_applied} of ${facts.tensors} tensors, ${facts.layers.length} layers, ${facts.dtypes.join(", ")}, scaling ${formatNorm(facts.scaling)}`}
    >
      <Scrollable label="Adapter modules">
        <Table aria-label="Modules" verticalSpacing={6} miw={480}>
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Module</Table.Th>
              <Table.Th ta="right">Layers</Table.Th>
              <Table.Th ta="right">Rank</Table.Th>
              <Table.Th ta="right">Norm of A</Table.Th>
              <Table.Th ta="right">Norm of B</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {facts.modules.map((module) => (
              <Table.Tr key={module.module}>
                <Table.Td>{module.module}</Table.Td>
                <Table.Td ta="right">{module.layers}</Table.Td>
                <Table.Td ta="right">
                  {module.rank_min === module.rank_max
                    ? module.rank_max
                    : `${module.rank_min} to ${module.rank_max}`}
                </Table.Td>
                <Table.Td ta="right">{formatNorm(module.norm_a)}</Table.Td>
                <Table.Td ta="right">{formatNorm(module.norm_b)}</Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Scrollable>
    </Panel>
  );
}
