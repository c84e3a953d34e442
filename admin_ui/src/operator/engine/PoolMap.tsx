/** The page arena as it is now, one cell a page, in page order. */

import { Box, Text, useComputedColorScheme } from "@mantine/core";
import { useElementSize } from "@mantine/hooks";
import { type PointerEvent, useEffect, useRef, useState } from "react";
import classes from "./PoolMap.module.css";
import { type Grid, KINDS, kindOf, layoutGrid, pageAt } from "./pages";

interface PoolMapProps {
  map: string;
  label: string;
}

/** A colour a canvas understands: custom properties hold light-dark() and var() as text. */
function resolved(element: HTMLElement, property: string): string {
  element.style.color = `var(${property})`;
  return getComputedStyle(element).color;
}

function draw(canvas: HTMLCanvasElement, map: string, grid: Grid): void {
  const context = canvas.getContext("2d");
  if (context === null) return;
  const scale = window.devicePixelRatio || 1;
  canvas.width = grid.columns * grid.cell * scale;
  canvas.height = grid.rows * grid.cell * scale;
  context.scale(scale, scale);
  const colors = new Map(KINDS.map(({ code, color }) => [code, resolved(canvas, color)]));
  const side = grid.cell - grid.gap;
  for (let page = 0; page < map.length; page += 1) {
    context.fillStyle = colors.get(map.charAt(page)) ?? "#888";
    const x = (page % grid.columns) * grid.cell;
    const y = Math.floor(page / grid.columns) * grid.cell;
    if (grid.gap < 2) context.fillRect(x, y, side, side);
    else {
      context.beginPath();
      context.roundRect(x, y, side, side, 3);
      context.fill();
    }
  }
}

export function PoolMap({ map, label }: PoolMapProps) {
  const { ref, width } = useElementSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scheme = useComputedColorScheme("light");
  const [hovered, setHovered] = useState<number | null>(null);
  const grid = layoutGrid(map.length, width || 800);

  // biome-ignore lint/correctness/useExhaustiveDependencies: the colours follow the scheme through CSS
  useEffect(() => {
    if (canvas.current && width > 0) draw(canvas.current, map, layoutGrid(map.length, width));
  }, [map, width, scheme]);

  function point(event: PointerEvent<HTMLCanvasElement>) {
    const { offsetX, offsetY } = event.nativeEvent;
    setHovered(pageAt(grid, map.length, offsetX, offsetY));
  }

  const kind = hovered === null ? undefined : kindOf(map.charAt(hovered));
  return (
    <Box ref={ref} className={classes.frame}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        className={classes.canvas}
        style={{ width: grid.columns * grid.cell, height: grid.rows * grid.cell }}
        onPointerMove={point}
        onPointerLeave={() => setHovered(null)}
      />
      <Text size="xs" c="dimmed" mt={6} mih={18} className="numbers" aria-hidden>
        {kind ? `Page ${hovered}: ${kind.label.toLowerCase()}` : "Point at a page to see its kind"}
      </Text>
    </Box>
  );
}
