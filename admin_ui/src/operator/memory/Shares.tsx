/** Tenants' shares of the arena as frames, with what they hold inside. */

import { Group, Stack, Text } from "@mantine/core";
import { formatCount } from "../../components/format";
import { Panel } from "../../components/Panel";
import { hueOf } from "../../components/tenantColor";
import {
  heldBy,
  keyOf,
  type Snapshot,
  sortedShares,
  type TenantMemory,
  tenantLabel,
} from "./model";
import classes from "./Page.module.css";
import { variable } from "./variable";

interface SharesProps {
  snapshot: Snapshot;
  stale: string | null;
}

const SHOWN = 12;

export function Shares({ snapshot, stale }: SharesProps) {
  const { view } = snapshot;
  const rows = sortedShares(view.tenants, SHOWN);
  const more = view.tenants.length - rows.length;
  const hasShares = view.tenants.some(({ max_pages }) => max_pages !== null);
  return (
    <Panel
      title="Pages by tenant"
      stale={stale}
      note={
        hasShares
          ? "Outline: maximum for the tenant. Tick: reserved for it. Filled: in use."
          : "No plan reserves memory, so all tenants share the arena."
      }
    >
      {rows.length === 0 ? (
        <Text size="sm" c="dimmed">
          No tenant uses a page. Pages are filled when requests run.
        </Text>
      ) : (
        <Stack gap={10} component="ul" p={0} m={0} style={{ listStyle: "none" }}>
          {rows.map((tenant) => (
            <Share key={keyOf(tenant)} tenant={tenant} total={view.total_pages} />
          ))}
          {more > 0 && (
            <Text component="li" size="xs" c="dimmed">
              and {formatCount(more)} more tenants with fewer pages
            </Text>
          )}
        </Stack>
      )}
    </Panel>
  );
}

function Share({ tenant, total }: { tenant: TenantMemory; total: number }) {
  const percent = (pages: number) => `${(100 * pages) / Math.max(total, 1)}%`;
  const held = heldBy(tenant);
  const { min_pages, max_pages } = tenant;
  const parts = [
    { kind: "live", pages: tenant.live_kv },
    { kind: "cached", pages: tenant.cached_kv },
    { kind: "adapter", pages: tenant.adapter },
  ];
  const share =
    max_pages === null
      ? ""
      : ` of ${formatCount(max_pages)}${min_pages ? `, ${formatCount(min_pages)} guaranteed` : ""}`;
  return (
    <li>
      <Group justify="space-between" gap="xs" wrap="nowrap" mb={3}>
        <Text size="sm" truncate>
          {tenantLabel(tenant)}
        </Text>
        <Text size="xs" className="numbers" style={{ whiteSpace: "nowrap" }}>
          {formatCount(held)}
          {share}
        </Text>
      </Group>
      <div
        className={classes.share}
        style={variable("hue", `var(--tenora-hue-${hueOf(keyOf(tenant))})`)}
        role="img"
        aria-label={`${tenantLabel(tenant)}: ${formatCount(tenant.live_kv)} live, ${formatCount(tenant.cached_kv)} cached, ${formatCount(tenant.adapter)} adapter pages${share}`}
      >
        <div className={classes.held} style={{ width: percent(held) }}>
          {parts.map(({ kind, pages }) => (
            <div
              key={kind}
              className={classes.part}
              data-kind={kind}
              style={{ width: `${(100 * pages) / Math.max(held, 1)}%` }}
            />
          ))}
        </div>
        {max_pages !== null && (
          <div className={classes.frame} style={{ width: percent(max_pages) }} />
        )}
        {min_pages !== null && min_pages > 0 && (
          <div className={classes.tick} style={{ left: percent(min_pages) }} />
        )}
      </div>
    </li>
  );
}
