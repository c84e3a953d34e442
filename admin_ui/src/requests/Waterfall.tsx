/** Where a request's time went: a lane for each sequence, its parts one after the other. */

import { Box, Table, Text } from "@mantine/core";
import type { ReactNode } from "react";
import { formatMs, formatPart } from "../components/format";
import { Scrollable } from "../components/Scrollable";
import { type Lane, lengthOf, type SegmentName } from "./model";
import classes from "./Waterfall.module.css";

const COLORS: Record<SegmentName, string> = {
  Queue: "light-dark(#b7bec7, #6b727b)",
  "Adapter load": "var(--mantine-color-orange-5)",
  Prefill: "var(--mantine-color-blue-5)",
  Decode: "var(--mantine-color-teal-6)",
  "Until the end": "var(--mantine-color-red-5)",
};
/** Of so many sequences there are lanes; of all of them the numbers. */
const LANES = 64;

interface WaterfallProps {
  lanes: readonly Lane[];
  /** Why it waited, where that is known. */
  causes?: ReactNode;
}

export function Waterfall({ lanes, causes }: WaterfallProps) {
  const length = lengthOf(lanes);
  return (
    <>
      <Box aria-hidden>
        {lanes.slice(0, LANES).map((lane) => (
          <div key={lane.sequence} className={classes.lane}>
            <span>{lanes.length > 1 ? `Sequence ${lane.sequence}` : "Request"}</span>
            <div className={classes.track}>
              {lane.segments.map(({ name, fromMs, ms }) => (
                <div
                  key={name}
                  className={classes.part}
                  title={`${name} ${formatMs(ms)}`}
                  style={{
                    left: `${(fromMs / length) * 100}%`,
                    width: `${(ms / length) * 100}%`,
                    background: COLORS[name],
                    display: ms > 0 ? undefined : "none",
                  }}
                />
              ))}
            </div>
            <span className={classes.total}>{formatMs(lane.totalMs)}</span>
          </div>
        ))}
      </Box>
      {lanes.length > LANES && (
        <Text size="xs" c="dimmed">
          The first {LANES} of {lanes.length} sequences are shown; the table below lists all of
          them.
        </Text>
      )}
      <Numbers lanes={lanes} />
      {causes}
    </>
  );
}

function Numbers({ lanes }: { lanes: readonly Lane[] }) {
  const names = [...new Set(lanes.flatMap(({ segments }) => segments.map(({ name }) => name)))];
  return (
    <Scrollable label="Times, table">
      <Table mt="sm" miw={460} aria-label="Times" verticalSpacing={6} horizontalSpacing="sm">
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Sequence</Table.Th>
            {names.map((name) => (
              <Table.Th key={name} ta="right">
                <span className={classes.dot} style={{ background: COLORS[name] }} aria-hidden />
                {name}
              </Table.Th>
            ))}
            <Table.Th ta="right">Total</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {lanes.map(({ sequence, segments, totalMs }) => (
            <Table.Tr key={sequence}>
              <Table.Td>{sequence}</Table.Td>
              {names.map((name) => {
                const part = segments.find((each) => each.name === name);
                return (
                  <Table.Td key={name} ta="right">
                    {part === undefined ? "–" : formatMs(part.ms)}{" "}
                    <Text span size="xs" c="dimmed">
                      {part && totalMs > 0 && formatPart(part.ms / totalMs)}
                    </Text>
                  </Table.Td>
                );
              })}
              <Table.Td ta="right" fw={600}>
                {formatMs(totalMs)}
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Scrollable>
  );
}
