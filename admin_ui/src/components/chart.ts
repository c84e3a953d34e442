/** How a TimeSeries is drawn: uPlot's options from ours, colours from the page's style sheet. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { alone, type Series } from "./series";

/** Something that happened, as a line across the chart. */
export interface Mark {
  atS: number;
  label: string;
  color?: string;
}

export interface Target {
  value: number;
  label: string;
}

export interface Drawn {
  series: readonly Series[];
  kind: "line" | "area" | "bars";
  isStacked: boolean;
  isDays: boolean;
  height: number;
  marks: readonly Mark[];
  target?: Target;
  sync?: string;
  format: (value: number) => string;
  onCursor: (index: number | null) => void;
  onBrush?: (startS: number, endS: number) => void;
}

const [MINUTE, HOUR, DAY] = [60, 3_600, 86_400];
const DATE = "\n{D} {MMM}";
/** The time axis as dates are written everywhere: uPlot's rows of least step, label, and what is
 * added where the year, the month, the day, the minute, the second begins. */
const TIMES: uPlot.Axis.Values = [
  [365 * DAY, "{YYYY}", null, null, null, null, null, null, 1],
  [28 * DAY, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [DAY, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [HOUR, "{HH}:{mm}", DATE, null, DATE, null, null, null, 1],
  [MINUTE, "{HH}:{mm}", DATE, null, DATE, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", DATE, null, DATE, null, null, null, 1],
];

const inUtc = (atS: number): Date => uPlot.tzDate(new Date(atS * 1000), "Etc/UTC");

export function draw(at: HTMLElement, drawn: Drawn, data: uPlot.AlignedData): uPlot {
  return new uPlot(options(at, drawn), data, at);
}

function options(at: HTMLElement, drawn: Drawn): uPlot.Options {
  const color = colors(at);
  const axis = {
    stroke: color("var(--mantine-color-dimmed)"),
    grid: { stroke: color("var(--tenora-grid)"), width: 1 },
    ticks: { show: false },
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
  };
  return {
    width: at.clientWidth,
    height: drawn.height,
    legend: { show: false },
    ...(drawn.isDays ? { tzDate: inUtc } : {}),
    cursor: {
      drag: { x: drawn.onBrush !== undefined, y: false, setScale: false },
      points: { show: !drawn.isStacked && drawn.kind !== "bars" },
      ...(drawn.sync ? { sync: { key: drawn.sync } } : {}),
    },
    scales: {
      x: drawn.kind === "bars" ? { range: widened } : {},
      y: { range: (_, low, high) => scaleOf(low, high, drawn.target?.value) },
    },
    axes: [
      { ...axis, space: 70, size: 40, values: TIMES },
      {
        ...axis,
        // Small amounts have long labels.
        size: (_, labels) =>
          Math.max(54, 14 + 6.4 * Math.max(0, ...(labels ?? []).map((each) => each.length))),
        space: 34,
        values: (_, ticks) => ticks.map((tick) => drawn.format(tick)),
      },
    ],
    series: [{}, ...drawn.series.map((each) => lineOf(drawn, color(each.color)))],
    hooks: {
      draw: [(plot) => drawExtras(plot, drawn, color)],
      setCursor: [(plot) => drawn.onCursor(plot.cursor.idx ?? null)],
      setSelect: [(plot) => brushed(plot, drawn)],
    },
  };
}

/** What a bar without others is as wide as. */
const ALONE_S = 86_400;

/** By half a step at both ends, so that the first bar and the last are whole. */
function widened(plot: uPlot, low: number, high: number): [number, number] {
  const times = plot.data[0];
  const [only] = times;
  if (times.length === 1 && only !== undefined) return [only - ALONE_S / 2, only + ALONE_S / 2];
  const step = (high - low) / Math.max(times.length - 1, 1);
  return [low - step / 2, high + step / 2];
}

/** From zero, and no higher than needed; an empty chart has a scale, too. */
function scaleOf(low: number, high: number, target = 0): [number, number] {
  const top = Math.max(high, target);
  if (!Number.isFinite(top) || top <= 0) return [Math.min(low, 0) || 0, 1];
  return [Math.min(low, 0), top * 1.08];
}

function lineOf({ kind, isStacked }: Drawn, color: string): uPlot.Series {
  const paths = kind === "bars" ? uPlot.paths.bars?.({ size: [0.8, 40] }) : undefined;
  const fills = kind === "bars" || isStacked;
  return {
    stroke: color,
    width: kind === "bars" ? 0 : 1.5,
    fill: fills ? color : kind === "area" ? translucent(color) : undefined,
    // A line has no length between two unknowns: what is known alone is a dot.
    points: { show: false, size: 5, fill: color, filter: (plot, at) => alone(plot.data[at] ?? []) },
    paths,
  };
}

function translucent(color: string): string {
  return color.replace(/^rgb\((.+)\)$/, "rgba($1, 0.16)");
}

function brushed(plot: uPlot, { onBrush }: Drawn): void {
  const { left, width } = plot.select;
  if (width < 4 || onBrush === undefined) return;
  onBrush(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

function drawExtras(plot: uPlot, { marks, target }: Drawn, color: (css: string) => string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.atS, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = color(mark.color ?? "var(--mantine-color-dimmed)");
    line(ctx, x, bbox.top, x, bbox.top + bbox.height);
  }
  if (target !== undefined) {
    const y = Math.round(plot.valToPos(target.value, "y", true));
    ctx.strokeStyle = color("var(--mantine-color-orange-6)");
    line(ctx, bbox.left, y, bbox.left + bbox.width, y);
  }
  ctx.restore();
}

function line(ctx: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

/** What a CSS colour is here and now: a canvas knows neither variables nor light-dark(). */
function colors(at: HTMLElement): (css: string) => string {
  const known = new Map<string, string>();
  return (css) => {
    const found = known.get(css);
    if (found !== undefined) return found;
    const probe = document.createElement("span");
    probe.style.color = css;
    at.append(probe);
    const color = getComputedStyle(probe).color;
    probe.remove();
    known.set(css, color);
    return color;
  };
}
