/** Service: what each tenant was promised in each class, and what of it was kept, minute by minute. */

import { Anchor, Group, SegmentedControl, Stack, Text, TextInput } from "@mantine/core";
import { IconClockCheck, IconSearch } from "@tabler/icons-react";
import { useState } from "react";
import { Link } from "react-router";
import { type Column, DataTable } from "../../components/DataTable";
import { formatCount, formatDate, formatMs, formatPart } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { RangePicker, useRange } from "../../components/range";
import { useQueryParams } from "../../components/searchParams";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { TenantName } from "../../components/TenantName";
import { useStale } from "../../live/stale";
import { Axis, LaneView } from "./LaneView";
import { GRADES, type Lane, lanesOf, type Promise_, type Row, requestsOf, rowsOf } from "./model";
import classes from "./Page.module.css";
import { useAttainment } from "./queries";

const PROMISES = [
  { value: "ttft_attainment", label: "TTFT" },
  { value: "tpot_attainment", label: "TPOT" },
] as const;
const isPromise = (text: string | null): text is Promise_ =>
  PROMISES.some(({ value }) => value === text);

export default function Page() {
  const range = useRange("1h");
  const [params, setParams] = useQueryParams();
  const wanted = params.get("of");
  const metric = isPromise(wanted) ? wanted : "ttft_attainment";
  const isTable = params.get("as") === "table";
  const [search, setSearch] = useState("");
  const all = useAttainment(metric, range.startS, range.endS, false);
  const each = useAttainment(metric, range.startS, range.endS, true);
  const stale = useStale(each.dataUpdatedAt);
  const classLanes = lanesOf(all.data, metric, false);
  const lanes = lanesOf(each.data, metric, true).filter(({ name, serviceClass }) =>
    `${name} ${serviceClass}`.toLowerCase().includes(search.trim().toLowerCase()),
  );
  const set = (name: string, value: string | null) =>
    setParams(
      (before) => {
        if (value === null) before.delete(name);
        else before.set(name, value);
        return before;
      },
      { replace: true },
    );
  const error = all.error ?? each.error;
  const isKnown = all.data !== undefined && each.data !== undefined;
  const cut = (each.data?.total ?? 0) - (each.data?.series.length ?? 0);
  return (
    <>
      <PageHeader
        title="Service"
        description="Share of sequences that met the latency targets of their plan, by class and by tenant. Tenants with the most missed targets come first. A sequence is one generated answer or one embedded input."
        action={<RangePicker range={range} />}
      />
      <Stack gap="md">
        <Group gap="sm">
          <SegmentedControl
            size="xs"
            aria-label="Latency target"
            data={[...PROMISES]}
            value={metric}
            onChange={(value) => set("of", value)}
          />
          <SegmentedControl
            size="xs"
            aria-label="View"
            data={[
              { value: "lanes", label: "Lanes" },
              { value: "table", label: "Table" },
            ]}
            value={isTable ? "table" : "lanes"}
            onChange={(value) => set("as", value === "table" ? "table" : null)}
          />
          <TextInput
            size="xs"
            aria-label="Tenant or class"
            placeholder="Tenant or class"
            leftSection={<IconSearch size={14} />}
            value={search}
            onChange={({ currentTarget }) => setSearch(currentTarget.value)}
          />
        </Group>
        {error && !isKnown && <ErrorState error={error} onRetry={() => each.refetch()} />}
        {!isKnown && !error && <TableSkeleton rows={6} />}
        {isKnown && classLanes.length === 0 && (
          <EmptyState
            icon={<IconClockCheck size={24} />}
            title="No requests with latency targets in this period"
          >
            Attainment appears here when requests finish on plans with a target for time to first
            token (ttft_ms) or time per output token (tpot_ms). Choose a longer period, or set
            targets under Plans.
          </EmptyState>
        )}
        {isKnown && classLanes.length > 0 && (
          <Panel
            title="By class"
            note={noteOf(each.data?.step_s)}
            stale={stale}
            action={<Legend />}
          >
            {classLanes.map((lane) => (
              <LaneView key={lane.key} lane={lane} metric={metric} targetLabel="target" />
            ))}
            <Axis startS={range.startS} endS={range.endS} />
          </Panel>
        )}
        {isKnown && classLanes.length > 0 && (
          <Panel
            title="By tenant"
            note={
              cut > 0
                ? `${formatCount(cut)} more with fewer missed targets are not shown`
                : undefined
            }
            stale={stale}
          >
            {lanes.length === 0 && (
              <Text size="sm" c="dimmed">
                No tenant or class matches.
              </Text>
            )}
            {isTable ? (
              <Cells lanes={lanes} metric={metric} />
            ) : (
              <>
                {lanes.map((lane) => (
                  <LaneView key={lane.key} lane={lane} metric={metric} targetLabel="target" />
                ))}
                <Axis startS={range.startS} endS={range.endS} />
              </>
            )}
          </Panel>
        )}
      </Stack>
    </>
  );
}

function noteOf(stepS: number | undefined): string {
  if (stepS === undefined) return "";
  const length = stepS >= 3_600 ? `${stepS / 3_600} h` : `${stepS / 60} min`;
  return `Each cell is ${length}. Click a cell, or drag across several, to see their requests, slowest first.`;
}

function Legend() {
  return (
    <Group gap="sm" component="ul" className={classes.legend} aria-label="Legend">
      {GRADES.map(({ grade, label, color }) => (
        <li key={grade}>
          <span className={classes.swatch} style={{ background: color }} aria-hidden />
          {label}
        </li>
      ))}
    </Group>
  );
}

const columnsOf = (metric: Promise_): Column<Row>[] => [
  {
    key: "time",
    header: "Start",
    cell: ({ lane, cell }) => (
      <Anchor component={Link} to={requestsOf(lane, metric, cell.startS, cell.endS)} size="sm">
        {formatDate(cell.startS)}
      </Anchor>
    ),
  },
  {
    key: "tenant",
    header: "Tenant",
    cell: ({ lane }) =>
      lane.tenantId === null ? lane.name : <TenantName id={lane.tenantId} name={lane.name} />,
  },
  { key: "class", header: "Class", cell: ({ lane }) => lane.serviceClass },
  {
    key: "target",
    header: "Target",
    align: "right",
    cell: ({ lane }) => (lane.targetMs === null ? "–" : formatMs(lane.targetMs)),
  },
  {
    key: "met",
    header: "Sequences in target",
    align: "right",
    cell: ({ cell }) => formatCount(cell.met),
  },
  {
    key: "promised",
    header: "Sequences with target",
    align: "right",
    cell: ({ cell }) => formatCount(cell.promised),
  },
  {
    key: "part",
    header: "Share met",
    align: "right",
    cell: ({ cell }) => formatPart(cell.met / cell.promised),
  },
];

function Cells({ lanes, metric }: { lanes: readonly Lane[]; metric: Promise_ }) {
  const rows = rowsOf(lanes);
  return (
    <DataTable
      label="Attainment by tenant"
      columns={columnsOf(metric)}
      rows={rows}
      rowKey={({ key }) => key}
      total={rows.length}
    />
  );
}
