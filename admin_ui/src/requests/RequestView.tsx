/** One request: what ran, where its time went, what it cost, and the proof of it. */

import { Anchor, Grid, SimpleGrid, Stack, Text } from "@mantine/core";
import { type ReactNode, useMemo } from "react";
import { Link } from "react-router";
import { Copyable } from "../components/Copyable";
import { formatCount, formatMoment, formatMs, shortDigest } from "../components/format";
import { Panel } from "../components/Panel";
import { Stat } from "../components/Stat";
import { Charges } from "./Charges";
import { kindOf, kindWord, lanesOf, type Receipt, speedOf } from "./model";
import { Proof } from "./Proof";
import { Waterfall } from "./Waterfall";

const RESIDENCY: Record<string, string> = {
  device: "in device memory",
  host: "in host memory",
  shared: "in the shared cache",
  store: "in the object store",
};

interface RequestViewProps {
  receipt: Receipt;
  /** As it was signed. */
  text: string;
  /** What its API key is called; null: it is not known. */
  keyName: string | null;
  /** Why it waited. */
  causes?: ReactNode;
  /** Where an adapter's page is; null: it has none here. */
  adapterAddress: (name: string) => string | null;
  children?: ReactNode;
}

export function RequestView(props: RequestViewProps) {
  const { receipt, text, causes, children } = props;
  const lanes = useMemo(() => lanesOf(receipt), [receipt]);
  const first = receipt.sequences[0];
  const { tokens } = receipt;
  const prompt = tokens.uncached_prefill + tokens.cached_prefill;
  const ttft = first?.times_ms.prefill;
  const speed = first && speedOf(first);
  return (
    <Stack>
      <SimpleGrid cols={{ base: 2, md: 4 }} spacing="sm">
        <Stat
          label="Time to first token"
          value={ttft == null ? "none" : formatMs((first?.times_ms.queue ?? 0) + ttft)}
          hint="after the request arrived"
        />
        <Stat
          label="Output"
          value={`${formatCount(tokens.output)} tokens`}
          hint={speed ? `${speed.toFixed(1)} tokens/s` : undefined}
        />
        <Stat
          label="Prompt"
          value={`${formatCount(prompt)} tokens`}
          hint={`${formatCount(tokens.cached_prefill)} of them cached`}
        />
        <Stat
          label="Class"
          value={first?.class ?? "–"}
          hint={receipt.asked.class ? `${receipt.asked.class} was requested` : "from the plan"}
        />
      </SimpleGrid>
      <Panel title="Where the time went" note="The phases add up to the total time.">
        <Waterfall lanes={lanes} causes={causes} />
      </Panel>
      <Panel title="Charges">
        <Charges receipt={receipt} />
      </Panel>
      <Grid gap="md">
        <Grid.Col span={{ base: 12, md: 6 }}>
          <Panel title="Details">
            <Facts {...props} />
          </Panel>
        </Grid.Col>
        <Grid.Col span={{ base: 12, md: 6 }}>
          <Panel title="Receipt">
            <Proof receipt={receipt} text={text} />
          </Panel>
        </Grid.Col>
      </Grid>
      {children}
    </Stack>
  );
}

function Facts({ receipt, keyName, adapterAddress }: RequestViewProps) {
  const { asked, ran } = receipt;
  const name = ran.adapter?.name;
  const address = name ? adapterAddress(name) : null;
  const version = name ? `${name}@${ran.adapter?.version}` : "a deleted adapter";
  const linked = address && (
    <Anchor component={Link} to={address} size="sm">
      {version}
    </Anchor>
  );
  const adapter = ran.adapter === null ? "base model only" : linked || version;
  const facts: [string, ReactNode][] = [
    ["Received", formatMoment(receipt.arrived_at)],
    ["Ended", formatMoment(receipt.finished_at)],
    ["Kind", kindWord(kindOf(receipt.id))],
    ["Model requested", asked.alias ? `${asked.model} (alias ${asked.alias})` : asked.model],
    ["Adapter", adapter],
    [
      "Digest",
      ran.adapter && (
        <Copyable
          label="digest"
          value={ran.adapter.digest}
          shown={shortDigest(ran.adapter.digest)}
        />
      ),
    ],
    ["Adapter residency", ran.residency && (RESIDENCY[ran.residency] ?? ran.residency)],
    ["Base model", ran.model],
    ["Plan", ran.plan],
    ["max_tokens", asked.max_tokens === null ? "default" : formatCount(asked.max_tokens)],
    ["Sequences", formatCount(ran.sequences)],
    [
      "Preemptions",
      formatCount(receipt.sequences.reduce((sum, each) => sum + each.preemptions, 0)),
    ],
    [
      "Cold adapter loads",
      formatCount(receipt.sequences.reduce((sum, each) => sum + each.cold_loads, 0)),
    ],
    [
      "API key",
      receipt.api_key_id && (
        <>
          {keyName} <Copyable label="key ID" value={receipt.api_key_id} />
        </>
      ),
    ],
    [
      "x-request-id",
      receipt.x_request_id && <Copyable label="x-request-id" value={receipt.x_request_id} />,
    ],
  ];
  return (
    <Stack gap={6} component="dl" m={0}>
      {facts
        .filter(([, value]) => value !== null && value !== "")
        .map(([label, value]) => (
          <SimpleGrid key={label} cols={2} spacing="sm">
            <Text component="dt" size="sm" c="dimmed">
              {label}
            </Text>
            <Text component="dd" size="sm" m={0}>
              {value}
            </Text>
          </SimpleGrid>
        ))}
    </Stack>
  );
}
