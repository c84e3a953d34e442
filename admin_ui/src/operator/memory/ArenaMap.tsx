/** The arena on a canvas, which arrow keys walk over and the pointer points at. */

import { Text, useComputedColorScheme } from "@mantine/core";
import { useElementSize } from "@mantine/hooks";
import {
  type KeyboardEvent,
  type PointerEvent,
  useEffect,
  useId,
  useMemo,
  useRef,
  useState,
} from "react";
import { hueOf } from "../../components/tenantColor";
import {
  keyOf,
  layout,
  type Mode,
  moved,
  ordersOf,
  pageAt,
  pageText,
  type Snapshot,
  summary,
} from "./model";
import classes from "./Page.module.css";
import { paint, paletteOf } from "./paint";

interface ArenaMapProps {
  snapshot: Snapshot;
  mode: Mode;
}

export function ArenaMap({ snapshot, mode }: ArenaMapProps) {
  const { ref, width } = useElementSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scheme = useComputedColorScheme("light");
  const [cursor, setCursor] = useState<number | null>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const help = useId();
  const { arena, view } = snapshot;
  const total = view.total_pages;
  const grid = useMemo(() => layout(total, width || 800), [total, width]);
  const orders = useMemo(() => ordersOf(total, view.departures), [total, view.departures]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: the colours follow the scheme through CSS
  useEffect(() => {
    const at = canvas.current;
    if (at === null || width === 0) return;
    const used = new Map(view.adapters.map(({ digest, last_used_at }) => [digest, last_used_at]));
    paint(at, paletteOf(at.parentElement ?? at), {
      arena,
      grid,
      mode,
      orders,
      firsts: new Set(view.departures.map(({ pages }) => pages[0] ?? -1)),
      cursor,
      atS: view.at,
      hues: arena.table.map((owner) => hueOf(keyOf(owner))),
      usedAt: arena.table.map(({ digest }) => used.get(digest ?? "") ?? view.at),
    });
  }, [snapshot, grid, mode, orders, cursor, width, scheme]);

  function press(event: KeyboardEvent) {
    const next = cursor === null ? 0 : moved(event.key, cursor, grid, arena);
    if (next === null || (cursor === null && !event.key.startsWith("Arrow"))) return;
    event.preventDefault();
    setCursor(next);
  }

  function point({ nativeEvent }: PointerEvent<HTMLCanvasElement>) {
    setPointed(pageAt(grid, total, nativeEvent.offsetX, nativeEvent.offsetY));
  }

  const page = pointed ?? cursor;
  return (
    <div>
      <div
        ref={ref}
        role="application"
        aria-roledescription="page map"
        aria-label={summary(snapshot)}
        aria-describedby={help}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the arrow keys move over its pages
        tabIndex={0}
        className={classes.map}
        onKeyDown={press}
        onBlur={() => setCursor(null)}
      >
        <canvas
          ref={canvas}
          className={classes.canvas}
          style={{ width: grid.columns * grid.cell, height: grid.rows * grid.height }}
          onPointerMove={point}
          onPointerLeave={() => setPointed(null)}
        />
      </div>
      <Text
        size="sm"
        mt={8}
        className={`${classes.under} numbers`}
        role="status"
        aria-live={pointed === null ? "polite" : "off"}
        data-testid="page-under-cursor"
      >
        {page === null ? (
          <Text span size="xs" c="dimmed" id={help}>
            Point to a page, or focus the map and use the arrow keys.
          </Text>
        ) : (
          pageText(page, snapshot, orders)
        )}
      </Text>
    </div>
  );
}
