/** Draws the arena on a canvas: hue by tenant or by kind, texture by kind. It decides nothing. */

import { ADAPTER, type Arena, ageOf, CACHED, FREE, type Grid, LIVE, type Mode } from "./model";

export interface Palette {
  /** By hue, the last is grey. */
  solid: readonly string[];
  soft: readonly string[];
  byKind: { live: string; cached: string; adapter: string };
  byAge: readonly string[];
  leaving: string;
  staying: string;
  outline: string;
  ground: string;
  text: string;
  focus: string;
}

export interface Picture {
  arena: Arena;
  grid: Grid;
  mode: Mode;
  /** Of every owner's number its hue. */
  hues: readonly number[];
  orders: Uint8Array;
  /** The first page of each thing that goes next. */
  firsts: ReadonlySet<number>;
  /** Of every owner's number when its adapter was last used. */
  usedAt: readonly number[];
  atS: number;
  cursor: number | null;
}

const ORDERS = 20;

export function paint(canvas: HTMLCanvasElement, palette: Palette, picture: Picture): void {
  const context = canvas.getContext("2d");
  if (context === null) return;
  const { grid, arena } = picture;
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(grid.columns * grid.cell * scale);
  canvas.height = Math.round(grid.rows * grid.height * scale);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const stripes = new Map<string, CanvasPattern | string>();
  const total = arena.kinds.length;
  for (let page = 0; page < total; ) {
    const end = grid.isJoined ? endOfRun(picture, page) : page + 1;
    drawCells(context, palette, picture, stripes, page, end);
    page = end;
  }
  if (picture.cursor !== null) drawCursor(context, palette, picture, picture.cursor);
}

/** Where the row ends, or what lies beside is another. */
function endOfRun({ arena, grid, orders }: Picture, page: number): number {
  const { kinds, owners, since } = arena;
  const row = (Math.floor(page / grid.columns) + 1) * grid.columns;
  let end = page + 1;
  while (
    end < row &&
    end < kinds.length &&
    kinds[end] === kinds[page] &&
    owners[end] === owners[page] &&
    since[end] === since[page] &&
    orders[end] === orders[page]
  )
    end += 1;
  return end;
}

function drawCells(
  context: CanvasRenderingContext2D,
  palette: Palette,
  picture: Picture,
  stripes: Map<string, CanvasPattern | string>,
  page: number,
  end: number,
): void {
  const { grid, arena, orders } = picture;
  const x = (page % grid.columns) * grid.cell;
  const y = Math.floor(page / grid.columns) * grid.height;
  const width = Math.max((end - page) * grid.cell - grid.gap, 1);
  const height = grid.height - grid.gap;
  const kind = arena.kinds[page] ?? FREE;
  if (kind === FREE) {
    context.strokeStyle = palette.outline;
    context.lineWidth = 1;
    if (width > 2 && height > 2) context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    else context.strokeRect(x, y + height / 2, width, 0);
    return;
  }
  const color = colorOf(palette, picture, page, kind);
  const isStriped = kind === ADAPTER && picture.mode !== "age";
  context.fillStyle = isStriped ? striped(context, stripes, color, palette.ground) : color;
  context.fillRect(x, y, width, height);
  const order = orders[page] ?? 0;
  if (picture.mode === "next" && picture.firsts.has(page) && width >= 10 && height >= 10) {
    context.fillStyle = palette.text;
    context.font = `600 ${Math.min(11, height - 3)}px sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(String(order), x + width / 2, y + height / 2 + 0.5);
  }
}

function colorOf(palette: Palette, picture: Picture, page: number, kind: number): string {
  const { arena, hues, mode, orders, usedAt, atS } = picture;
  const owner = arena.owners[page] ?? 0;
  if (mode === "kind") {
    if (kind === LIVE) return palette.byKind.live;
    return kind === CACHED ? palette.byKind.cached : palette.byKind.adapter;
  }
  if (mode === "age") {
    const last = kind === CACHED ? (arena.since[page] ?? 0) : (usedAt[owner] ?? atS);
    const idle = kind === LIVE ? 0 : Math.max(atS - last, 0);
    return palette.byAge[ageOf(idle)] ?? palette.staying;
  }
  if (mode === "next") {
    const order = orders[page] ?? 0;
    if (order === 0) return palette.staying;
    const part = Math.round(100 - (60 * (order - 1)) / ORDERS);
    return `color-mix(in srgb, ${palette.leaving} ${part}%, ${palette.staying})`;
  }
  const hue = hues[owner] ?? palette.solid.length - 1;
  return (kind === CACHED ? palette.soft[hue] : palette.solid[hue]) ?? palette.staying;
}

function striped(
  context: CanvasRenderingContext2D,
  known: Map<string, CanvasPattern | string>,
  color: string,
  ground: string,
): CanvasPattern | string {
  const found = known.get(color);
  if (found !== undefined) return found;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  let made: CanvasPattern | string = color;
  if (brush !== null) {
    brush.fillStyle = color;
    brush.fillRect(0, 0, 6, 6);
    brush.strokeStyle = ground;
    brush.lineWidth = 1.6;
    for (const from of [-6, 0, 6]) {
      brush.beginPath();
      brush.moveTo(from, 6);
      brush.lineTo(from + 6, 0);
      brush.stroke();
    }
    made = context.createPattern(tile, "repeat") ?? color;
  }
  known.set(color, made);
  return made;
}

function drawCursor(
  context: CanvasRenderingContext2D,
  palette: Palette,
  { grid }: Picture,
  page: number,
): void {
  const x = (page % grid.columns) * grid.cell;
  const y = Math.floor(page / grid.columns) * grid.height;
  context.strokeStyle = palette.focus;
  context.lineWidth = 2;
  context.strokeRect(x - 0.5, y - 0.5, Math.max(grid.cell, 4), Math.max(grid.height, 4));
}

/** The palette of the page's style sheet: a canvas knows neither variables nor light-dark(). */
export function paletteOf(element: HTMLElement): Palette {
  const probe = document.createElement("span");
  element.append(probe);
  const color = (name: string, of = "memory") => {
    probe.style.color = `var(--${of}-${name})`;
    return getComputedStyle(probe).color;
  };
  const numbered = (name: string, count: number, of?: string) =>
    Array.from({ length: count }, (_, index) => color(`${name}-${index}`, of));
  const palette: Palette = {
    solid: numbered("hue", 11, "tenora"),
    soft: numbered("soft", 11),
    byKind: { live: color("live"), cached: color("cached"), adapter: color("adapter") },
    byAge: numbered("age", 5),
    leaving: color("leaving"),
    staying: color("staying"),
    outline: color("outline"),
    ground: color("ground"),
    text: color("text"),
    focus: color("focus"),
  };
  probe.remove();
  return palette;
}
