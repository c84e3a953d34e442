/**
 * Numbers over time: lines, areas or bars, stacked or not, with marks for what happened, a target
 * line, a range to brush, and a table of the same numbers. Drawn by uPlot on a canvas.
 */

import { Box, Group, Text, UnstyledButton, useComputedColorScheme } from "@mantine/core";
import { IconChartLine, IconTable } from "@tabler/icons-react";
import { useEffect, useId, useMemo, useRef, useState } from "react";
import type uPlot from "uplot";
import { draw, type Mark, type Target } from "./chart";
import { formatCompact, formatDate, formatDay, zoneName } from "./format";
import { Scrollable } from "./Scrollable";
import { type Series, stacked } from "./series";
import classes from "./TimeSeries.module.css";

interface TimeSeriesProps {
  label: string;
  /** The label stands above the chart, where several share a panel. */
  isNamed?: boolean;
  /** Unix seconds, ascending. */
  times: readonly number[];
  series: readonly Series[];
  kind?: "line" | "area" | "bars";
  isStacked?: boolean;
  /** The times are UTC days: told by their date alone, wherever the browser is. */
  isDays?: boolean;
  format?: (value: number) => string;
  height?: number;
  marks?: readonly Mark[];
  target?: Target;
  /** The range that was drawn with the pointer, in unix seconds. */
  onBrush?: (startS: number, endS: number) => void;
  /** The index of the time that was clicked, or on which Enter was pressed. */
  onPick?: (index: number) => void;
  /** Charts of the same name share their cursor. */
  sync?: string;
}

/** Less than this between press and release is a click, no range. */
const CLICK_PX = 4;

export function TimeSeries(props: TimeSeriesProps) {
  const { label, times, series, format = formatCompact, height = 200 } = props;
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [isTable, setTable] = useState(false);
  const [cursor, setCursor] = useState<number | null>(null);
  const shown = useMemo(() => series.filter(({ name }) => !hidden.has(name)), [series, hidden]);
  const zone = props.isDays ? "UTC" : zoneName();
  const timeOf = props.isDays ? formatDay : formatDate;
  const toggle = (name: string) =>
    setHidden((before) => {
      const next = new Set(before);
      if (!next.delete(name)) next.add(name);
      return next;
    });
  return (
    <Box component="figure" m={0} aria-label={label}>
      {props.isNamed && (
        <Text size="sm" fw={550} px={6} aria-hidden>
          {label}
        </Text>
      )}
      <Group justify="space-between" gap="xs" mb={4} mih={22}>
        <Group gap={2}>
          {series.map(({ name, color, values }) => (
            <UnstyledButton
              key={name}
              className={classes.key}
              aria-pressed={!hidden.has(name)}
              onClick={() => toggle(name)}
            >
              <span className={classes.dot} style={{ background: color }} aria-hidden />
              {name}
              {cursor !== null && (
                <Text span inherit fw={600} className="numbers">
                  {written(values[cursor], format)}
                </Text>
              )}
            </UnstyledButton>
          ))}
        </Group>
        <Group gap="xs">
          <Text size="xs" c="dimmed" className="numbers">
            {cursor === null ? zone : timeOf(times[cursor] ?? 0)}
          </Text>
          <UnstyledButton
            className={classes.key}
            aria-label={isTable ? `${label}: show as chart` : `${label}: show as table`}
            onClick={() => setTable(!isTable)}
          >
            {isTable ? <IconChartLine size={15} /> : <IconTable size={15} />}
          </UnstyledButton>
        </Group>
      </Group>
      {isTable ? (
        <Numbers {...{ label, times, series, format, height, timeOf }}>
          {props.isDays ? "Day (UTC)" : "Time"}
        </Numbers>
      ) : (
        <Canvas {...props} series={shown} format={format} height={height} onCursor={setCursor} />
      )}
    </Box>
  );
}

function written(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? "–" : format(value);
}

interface CanvasProps extends TimeSeriesProps {
  format: (value: number) => string;
  height: number;
  onCursor: (index: number | null) => void;
}

function Canvas(props: CanvasProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const scheme = useComputedColorScheme("light");
  const help = useId();
  const latest = useRef(props);
  latest.current = props;
  const { times, series, kind, isStacked, isDays, height, marks, target, sync } = props;
  const shape = series.map(({ name, color }) => `${name} ${color}`).join();
  const brushes = props.onBrush !== undefined;
  const data = useMemo<uPlot.AlignedData>(
    () => [
      [...times],
      // The highest sum is drawn first, so that each covers what is not its own.
      ...(isStacked ? stacked(series).reverse() : series.map(({ values }) => [...values])),
    ],
    [times, series, isStacked],
  );
  const newest = useRef(data);
  newest.current = data;
  // biome-ignore lint/correctness/useExhaustiveDependencies: drawn anew when its form changes; numbers are set below
  useEffect(() => {
    const at = box.current;
    if (at === null) return;
    const form = {
      series: isStacked ? [...series].reverse() : series,
      kind: kind ?? "line",
      isStacked: isStacked ?? false,
      isDays: isDays ?? false,
      height,
      marks: marks ?? [],
      target,
      sync,
      format: (value: number) => latest.current.format(value),
      onCursor: (index: number | null) => latest.current.onCursor(index),
      onBrush: brushes
        ? (start: number, end: number) => latest.current.onBrush?.(start, end)
        : undefined,
    };
    const made = draw(at, form, newest.current);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: at.clientWidth, height }));
    watch.observe(at);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, kind, isStacked, isDays, height, marks, target, sync, brushes, scheme]);
  useEffect(() => {
    if (plot.current?.data !== data) plot.current?.setData(data);
  }, [data]);

  const pressed = useRef<number | null>(null);
  const pick = () => {
    const index = plot.current?.cursor.idx;
    if (index !== null && index !== undefined) props.onPick?.(index);
  };
  const move = (by: number) => {
    const at = plot.current;
    if (at === null) return;
    const index = Math.min(Math.max((at.cursor.idx ?? times.length - 1) + by, 0), times.length - 1);
    at.setCursor({ left: at.valToPos(times[index] ?? 0, "x"), top: 0 });
  };
  return (
    <>
      <div
        ref={box}
        role="img"
        aria-label={`${props.label}, chart`}
        aria-describedby={help}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the arrow keys move its cursor
        tabIndex={0}
        className={classes.canvas}
        style={{ height, cursor: props.onPick ? "pointer" : undefined }}
        onKeyDown={({ key }) => {
          if (key === "ArrowLeft") move(-1);
          if (key === "ArrowRight") move(1);
          if (key === "Enter") pick();
        }}
        onPointerDown={({ clientX }) => {
          pressed.current = clientX;
        }}
        onClick={({ clientX }) => {
          if (Math.abs(clientX - (pressed.current ?? clientX)) < CLICK_PX) pick();
        }}
      />
      <span id={help} hidden>
        Use the left and right arrow keys to move in time. The legend shows the values.
        {props.onPick && " Press Enter to open the requests at that time."}
      </span>
    </>
  );
}

interface NumbersProps {
  label: string;
  times: readonly number[];
  series: readonly Series[];
  format: (value: number) => string;
  height: number;
  timeOf: (time: number) => string;
  /** What the column of times is called. */
  children: string;
}

function Numbers({ label, times, series, format, height, timeOf, children }: NumbersProps) {
  return (
    <Scrollable label={`${label}, table`} className={classes.numbers} style={{ height }}>
      <table aria-label={label}>
        <thead>
          <tr>
            <th scope="col">{children}</th>
            {series.map(({ name }) => (
              <th key={name} scope="col">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {times.map((time, index) => (
            <tr key={time}>
              <th scope="row">{timeOf(time)}</th>
              {series.map(({ name, values }) => (
                <td key={name}>{written(values[index], format)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scrollable>
  );
}
