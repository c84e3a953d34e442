/** What would be given up next, numbered, and why. */

import { Group, Select, Text } from "@mantine/core";
import { formatCount, formatMs } from "../../components/format";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { type Departure, type Snapshot, spanOf } from "./model";
import classes from "./Page.module.css";
import { variable } from "./variable";

interface NextOutProps {
  snapshot: Snapshot;
  forTenant: string | null;
  onFor: ((tenant: string | null) => void) | null;
  stale: string | null;
}

export function NextOut({ snapshot, forTenant, onFor, stale }: NextOutProps) {
  const { view } = snapshot;
  const tenants = view.tenants
    .filter(({ tenant_id }) => tenant_id !== null)
    .map(({ tenant_id, tenant }) => ({ value: tenant_id ?? "", label: tenant ?? "" }));
  return (
    <Panel
      title="Next evictions"
      stale={stale}
      note={`Order of the "${view.policy}" eviction policy. Eviction starts when the ${formatCount(view.counts.free)} free pages are in use.`}
    >
      {onFor && (
        <Select
          size="xs"
          mb="xs"
          label="If memory is needed by"
          data={[{ value: "", label: "a tenant without a memory share" }, ...tenants]}
          value={forTenant ?? ""}
          allowDeselect={false}
          onChange={(value) => onFor(value || null)}
        />
      )}
      {view.departures.length === 0 ? (
        <Text size="sm" c="dimmed">
          No page can be evicted: every page is free, in use or pinned.
        </Text>
      ) : (
        <Scrollable label="Next evictions, in order" style={{ maxHeight: 460 }}>
          <ol className={classes.next} data-testid="departures">
            {view.departures.map((each) => (
              <Leaving key={each.order} each={each} atS={view.at} />
            ))}
          </ol>
        </Scrollable>
      )}
    </Panel>
  );
}

function Leaving({ each, atS }: { each: Departure; atS: number }) {
  const what =
    each.kind === "adapter"
      ? `adapter ${each.adapter}`
      : `cached KV${each.adapter ? `, ${each.adapter}` : ""}`;
  const pages = `${formatCount(each.pages.length)} ${each.pages.length === 1 ? "page" : "pages"}`;
  return (
    <li>
      <span
        className={classes.order}
        style={variable("part", `${Math.round(100 - 3 * (each.order - 1))}%`)}
      >
        {each.order}
      </span>
      <div>
        <Group gap="xs" justify="space-between" wrap="nowrap">
          <Text size="sm" fw={550} truncate>
            {each.tenant ?? "unknown"}
          </Text>
          <Text size="xs" className="numbers" style={{ whiteSpace: "nowrap" }}>
            {pages}
          </Text>
        </Group>
        <Text size="xs">{what}</Text>
        <Text size="xs" c="dimmed" className="numbers">
          {each.again_ms === null ? "cannot be restored" : `${formatMs(each.again_ms)} to restore`},
          idle {spanOf(atS - each.last_used_at)}
        </Text>
        <details>
          <summary>
            <Text span size="xs">
              Reason
            </Text>
          </summary>
          <Text size="xs" c="dimmed">
            {each.reason}
          </Text>
        </details>
      </div>
    </li>
  );
}
