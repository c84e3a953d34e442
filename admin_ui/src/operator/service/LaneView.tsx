/** One lane: a cell for each step, coloured by how much of what was promised was kept. */

import { Text } from "@mantine/core";
import { useId, useRef, useState } from "react";
import { useNavigate } from "react-router";
import {
  formatCount,
  formatDate,
  formatMs,
  formatPart,
  SEQUENCE_HELP,
} from "../../components/format";
import { TenantDot } from "../../components/TenantName";
import classes from "./LaneView.module.css";
import { cellAt, colorOf, type Lane, type Promise_, requestsOf } from "./model";

interface LaneViewProps {
  lane: Lane;
  metric: Promise_;
  /** Shown in the header: of what the target is. */
  targetLabel: string;
}

export function LaneView({ lane, metric, targetLabel }: LaneViewProps) {
  const navigate = useNavigate();
  const help = useId();
  const strip = useRef<SVGSVGElement>(null);
  const [at, setAt] = useState<number | null>(null);
  const [from, setFrom] = useState<number | null>(null);
  const cell = at === null ? undefined : lane.cells[at];
  const place = ({ clientX }: { clientX: number }): number => {
    const box = strip.current?.getBoundingClientRect();
    return box === undefined ? 0 : cellAt(lane, (clientX - box.left) / box.width);
  };
  const open = (one: number, other: number) => {
    const first = lane.cells[Math.min(one, other)];
    const last = lane.cells[Math.max(one, other)];
    if (first && last) navigate(requestsOf(lane, metric, first.startS, last.endS));
  };
  const move = (by: number) =>
    setAt((before) =>
      Math.min(Math.max((before ?? lane.cells.length - 1) + by, 0), lane.cells.length - 1),
    );
  const said = cell
    ? `${formatDate(cell.startS)}: ${written(cell.met, cell.promised)}`
    : `${formatCount(lane.met)} of ${formatCount(lane.promised)} sequences in total`;
  const target = lane.targetMs === null ? "" : `${targetLabel} ${formatMs(lane.targetMs)}`;
  return (
    <div className={classes.lane}>
      <div className={classes.head}>
        <Text size="sm" fw={550} truncate title={lane.name}>
          {lane.tenantId !== null && <TenantDot id={lane.tenantId} />} {lane.name}
        </Text>
        <Text size="xs" c="dimmed">
          {[lane.serviceClass, target].filter(Boolean).join(", ")}
        </Text>
      </div>
      <div
        role="slider"
        tabIndex={0}
        className={classes.strip}
        aria-label={`${lane.name}, ${lane.serviceClass}`}
        aria-valuemin={0}
        aria-valuemax={lane.cells.length - 1}
        aria-valuenow={at ?? lane.cells.length - 1}
        aria-valuetext={said}
        aria-describedby={help}
        onKeyDown={(event) => {
          const steps: Record<string, number> = {
            ArrowLeft: -1,
            ArrowRight: 1,
            Home: -lane.cells.length,
            End: lane.cells.length,
          };
          const by = steps[event.key];
          if (by !== undefined) {
            event.preventDefault();
            move(by);
          }
          if (event.key === "Enter" && at !== null) open(at, at);
        }}
        onPointerDown={(event) => setFrom(place(event))}
        onPointerMove={(event) => setAt(place(event))}
        onPointerUp={(event) => {
          if (from !== null) open(from, place(event));
          setFrom(null);
        }}
        onPointerLeave={() => {
          setAt(null);
          setFrom(null);
        }}
        onBlur={() => setAt(null)}
      >
        <svg
          ref={strip}
          aria-hidden
          width="100%"
          height="26"
          viewBox={`0 0 ${lane.cells.length} 1`}
          preserveAspectRatio="none"
        >
          {lane.cells.map(({ startS, grade }, index) => (
            <rect
              key={startS}
              x={index + 0.04}
              width={0.92}
              y={0}
              height={1}
              fill={colorOf(grade)}
              opacity={isWithin(index, at, from) ? 0.6 : 1}
            />
          ))}
        </svg>
      </div>
      <Text size="sm" className={classes.said} data-testid="said" title={SEQUENCE_HELP}>
        {cell ? (
          <>
            <span className={classes.time}>{formatDate(cell.startS)}</span>{" "}
            {written(cell.met, cell.promised)}
          </>
        ) : (
          written(lane.met, lane.promised)
        )}
      </Text>
      <span id={help} hidden>
        Use the left and right arrow keys to move in time. Press Enter to open the requests at that
        time.
      </span>
    </div>
  );
}

function isWithin(index: number, at: number | null, from: number | null): boolean {
  if (at === null) return false;
  if (from === null) return index === at;
  return index >= Math.min(at, from) && index <= Math.max(at, from);
}

export function written(met: number, promised: number): string {
  if (promised === 0) return "no sequences";
  return `${formatCount(met)}/${formatCount(promised)} · ${formatPart(met / promised)}`;
}

/** Where the lanes begin and end. */
export function Axis({ startS, endS }: { startS: number; endS: number }) {
  return (
    <div className={classes.lane} aria-hidden>
      <span />
      <Text size="xs" c="dimmed" className={classes.axis}>
        <span>{formatDate(startS)}</span>
        <span>{formatDate(endS)}</span>
      </Text>
      <span />
    </div>
  );
}
