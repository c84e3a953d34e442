/** The page arena as it is and was: whose each page is, what goes next, and where adapters are. */

import { Badge, Group, SegmentedControl, Stack } from "@mantine/core";
import { useMemo, useState } from "react";
import { formatBytes, formatCount } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { useParam } from "../../components/SidePanel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { useStale } from "../../live/stale";
import { Adapters } from "./Adapters";
import { ArenaMap } from "./ArenaMap";
import { Legend } from "./Legend";
import { MODES, type Mode, type Snapshot, snapshotOf } from "./model";
import { NextOut } from "./NextOut";
import classes from "./Page.module.css";
import { useArena, useHistory, usePast } from "./queries";
import { RunTable } from "./RunTable";
import { Shares } from "./Shares";
import { clock, TimeBar } from "./TimeBar";

const MODE_LABELS: Record<Mode, string> = {
  kind: "By kind",
  tenant: "By tenant",
  age: "By age",
  next: "By eviction order",
};
const isMode = (text: string | null): text is Mode => MODES.some((mode) => mode === text);

export default function Page() {
  const [atText, setAt] = useParam("at");
  const [forTenant, setFor] = useParam("for");
  const at = Number(atText) > 0 ? Number(atText) : null;
  const now = useArena(forTenant, at === null);
  const history = useHistory();
  const past = usePast(at);
  const then = past.data?.pages ?? null;
  const before = useMemo(() => (then === null ? null : snapshotOf(then)), [then]);
  const snapshot = at === null ? now.snapshot : before;
  const { error, refetch } = at === null ? now : past;
  const stale = useStale(at === null ? now.dataUpdatedAt : 0);
  const goTo = (next: number | null) => setAt(next === null ? null : String(next));
  return (
    <div className={classes.page}>
      <PageHeader
        title="Memory"
        description="KV (keys and values) of running requests, cached KV and adapters share one arena of equal pages."
        beside={at !== null && <Badge color="orange">as of {clock(at)}</Badge>}
      />
      {error && <ErrorState error={error} onRetry={() => refetch()} />}
      {!error && snapshot === null && <TableSkeleton rows={8} />}
      {snapshot && (
        <Stack gap="md">
          <div className={classes.columns}>
            <Stack gap="md" miw={0}>
              <ArenaPanel snapshot={snapshot} stale={stale} />
              <TimeBar samples={history.data?.data ?? []} at={at} onAt={goTo} />
            </Stack>
            <Stack gap="md" miw={0}>
              <Shares snapshot={snapshot} stale={stale} />
              <NextOut
                snapshot={snapshot}
                forTenant={forTenant}
                onFor={at === null ? setFor : null}
                stale={stale}
              />
            </Stack>
          </div>
          {at === null && <Adapters snapshot={snapshot} />}
        </Stack>
      )}
    </div>
  );
}

function ArenaPanel({ snapshot, stale }: { snapshot: Snapshot; stale: string | null }) {
  const [wanted, setMode] = useParam("mode");
  const [isTable, setTable] = useState(false);
  const mode = isMode(wanted) ? wanted : "tenant";
  const { view } = snapshot;
  return (
    <Panel
      title="Page arena"
      stale={stale}
      note={`${formatCount(view.total_pages)} pages of ${formatBytes(view.page_bytes)}, ${formatBytes(view.total_pages * view.page_bytes)}`}
      action={
        <Group gap="xs">
          <SegmentedControl
            size="xs"
            aria-label="Colour pages by"
            data={MODES.map((value) => ({ value, label: MODE_LABELS[value] }))}
            value={mode}
            onChange={setMode}
          />
          <SegmentedControl
            size="xs"
            aria-label="View"
            data={[
              { value: "map", label: "Map" },
              { value: "table", label: "Table" },
            ]}
            value={isTable ? "table" : "map"}
            onChange={(value) => setTable(value === "table")}
          />
        </Group>
      }
    >
      <Stack gap="sm">
        <Legend snapshot={snapshot} mode={mode} />
        {isTable ? <RunTable snapshot={snapshot} /> : <ArenaMap snapshot={snapshot} mode={mode} />}
      </Stack>
    </Panel>
  );
}
