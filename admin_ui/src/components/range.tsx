/** One range of time in the URL, for all charts of a page, and the control that sets it. */

import { Group, SegmentedControl, Text } from "@mantine/core";
import { useEffect, useMemo, useState } from "react";
import { formatDate } from "./format";
import { useQueryParams } from "./searchParams";

const SPANS_S = { "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000 };
export type Span = keyof typeof SPANS_S;
const isSpan = (text: string | null): text is Span => text !== null && text in SPANS_S;

export interface Range {
  /** Unix seconds, whole minutes; `endS` moves on with the clock unless the range is fixed. */
  startS: number;
  endS: number;
  /** null: chosen in a chart. */
  span: Span | null;
  setSpan: (span: Span) => void;
  zoom: (startS: number, endS: number) => void;
}

const minute = () => Math.ceil(Date.now() / 60_000) * 60;

export function useRange(initial: Span = "24h"): Range {
  const [params, setParams] = useQueryParams();
  const [now, setNow] = useState(minute);
  useEffect(() => {
    const timer = setInterval(() => setNow(minute()), 10_000);
    return () => clearInterval(timer);
  }, []);
  const start = Number(params.get("start"));
  const end = Number(params.get("end"));
  const wanted = params.get("range");
  return useMemo(() => {
    const isFixed = start > 0 && end > start;
    const span = isFixed ? null : isSpan(wanted) ? wanted : initial;
    return {
      startS: span === null ? start : now - SPANS_S[span],
      endS: span === null ? end : now,
      span,
      setSpan: (next) =>
        setParams((before) => {
          before.delete("start");
          before.delete("end");
          before.set("range", next);
          return before;
        }),
      zoom: (startS, endS) =>
        setParams((before) => {
          before.delete("range");
          before.set("start", String(Math.floor(startS)));
          before.set("end", String(Math.ceil(endS)));
          return before;
        }),
    };
  }, [start, end, wanted, now, initial, setParams]);
}

export function RangePicker({ range }: { range: Range }) {
  return (
    <Group gap="sm">
      {range.span === null && (
        <Text size="xs" c="dimmed">
          {formatDate(range.startS)} to {formatDate(range.endS)}
        </Text>
      )}
      <SegmentedControl
        size="xs"
        aria-label="Time range"
        data={Object.keys(SPANS_S)}
        value={range.span ?? ""}
        onChange={(span) => isSpan(span) && range.setSpan(span)}
      />
    </Group>
  );
}
