/** What hues and textures mean, for somebody who sees the map for the first time. */

import { Group, Text } from "@mantine/core";
import type { ReactNode } from "react";
import { formatCount } from "../../components/format";
import { hueOf } from "../../components/tenantColor";
import { AGES, KINDS, keyOf, type Mode, type Snapshot, sortedShares, tenantLabel } from "./model";
import classes from "./Page.module.css";
import { variable } from "./variable";

interface LegendProps {
  snapshot: Snapshot;
  mode: Mode;
}

const WORDS: Record<Mode, string> = {
  kind: "Live KV: keys and values of running requests. Cached KV: kept for prompts with the same prefix, evicted when memory is needed. Adapter: LoRA weights.",
  tenant:
    "Colour: the tenant that owns the page. Solid: in use by a request. Light: cached KV. Striped: adapter weights. Outline only: free.",
  age: "Time since the page was last used. The strongest colour marks pages in use now.",
  next: "Numbered pages are evicted first, in this order. All others are grey.",
};

const BY_KIND: Record<string, string> = {
  live: "--memory-live",
  cached: "--tenora-hue-0",
  adapter: "--memory-adapter",
  free: "--memory-outline",
};

function Key({ hue, kind, children }: { hue: string; kind: string; children: ReactNode }) {
  return (
    <Group gap={6} wrap="nowrap">
      <span
        className={classes.swatch}
        data-kind={kind}
        style={variable("hue", `var(${hue})`)}
        aria-hidden
      />
      <Text size="sm">{children}</Text>
    </Group>
  );
}

export function Legend({ snapshot, mode }: LegendProps) {
  const { counts } = snapshot.view;
  const pages: Record<string, number> = {
    live: counts.live_kv,
    cached: counts.cached_kv,
    adapter: counts.adapter,
    free: counts.free,
  };
  return (
    <div>
      <Group gap="md" mb={6}>
        {KINDS.map(({ name, label }) => (
          <Key
            key={name}
            kind={name}
            hue={mode === "kind" ? (BY_KIND[name] ?? "") : "--tenora-hue-10"}
          >
            {label}{" "}
            <Text span fw={600} className="numbers" data-testid={`pages-${name}`}>
              {formatCount(pages[name] ?? 0)}
            </Text>
          </Key>
        ))}
      </Group>
      {mode === "tenant" && (
        <Group gap="md" mb={6}>
          {sortedShares(snapshot.view.tenants, 12).map((tenant) => (
            <Key key={keyOf(tenant)} kind="live" hue={`--tenora-hue-${hueOf(keyOf(tenant))}`}>
              {tenantLabel(tenant)}
            </Key>
          ))}
        </Group>
      )}
      {mode === "age" && (
        <Group gap="md" mb={6}>
          {AGES.map(({ label }, index) => (
            <Key key={label} kind="live" hue={`--memory-age-${index}`}>
              {label}
            </Key>
          ))}
        </Group>
      )}
      <Text size="xs" c="dimmed" maw={760}>
        {WORDS[mode]}
      </Text>
    </div>
  );
}
