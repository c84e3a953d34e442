/** One entry: who, what, when, from where, what changed, and its place in the chain. */

import { Box, Divider, Stack, Text } from "@mantine/core";
import { IconFileSearch } from "@tabler/icons-react";
import type { ReactNode } from "react";
import { Copyable } from "../components/Copyable";
import { formatMoment, shortDigest } from "../components/format";
import { EmptyState, ErrorState, TableSkeleton } from "../components/states";
import { Changes } from "./Changes";
import { actorOf, changesOf, type Entry, otherDetails, type Side } from "./model";
import { useEntry } from "./queries";

export function EntryView({ side, id }: { side: Side; id: string }) {
  const entry = useEntry(side, id);
  if (entry.isPending) return <TableSkeleton />;
  if (entry.error) return <ErrorState error={entry.error} onRetry={() => entry.refetch()} />;
  if (entry.data === null)
    return (
      <EmptyState icon={<IconFileSearch size={24} />} title="Entry not found">
        There is no entry with this ID, or your role does not allow you to see it.
      </EmptyState>
    );
  return <Found entry={entry.data} />;
}

function Found({ entry }: { entry: Entry }) {
  const others = otherDetails(entry);
  return (
    <Stack>
      <Stack gap={6} component="dl" m={0}>
        <Fact name="Time">{formatMoment(entry.at)}</Fact>
        <Fact name="Actor">
          {actorOf(entry)}
          {entry.actor_name && (
            <Text size="xs" c="dimmed" ff="monospace">
              {entry.actor}
            </Text>
          )}
        </Fact>
        <Fact name="Target">
          {entry.target_name}
          <Copyable value={entry.target} label="target" />
        </Fact>
        {entry.tenant_id && (
          <Fact name="Tenant">
            {entry.tenant_name}
            <Copyable value={entry.tenant_id} label="tenant" />
          </Fact>
        )}
        <Fact name="IP address">{entry.address ?? "the platform"}</Fact>
        {entry.request_id && (
          <Fact name="Request">
            <Copyable value={entry.request_id} label="request ID" />
          </Fact>
        )}
      </Stack>
      <Divider label="Changes" labelPosition="left" />
      <Box>
        <Changes changes={changesOf(entry.before, entry.after)} />
      </Box>
      {others.length > 0 && (
        <>
          <Divider label="Details" labelPosition="left" />
          <Stack gap={6} component="dl" m={0}>
            {others.map(({ path, after }) => (
              <Fact key={path} name={path}>
                {after ?? "–"}
              </Fact>
            ))}
          </Stack>
        </>
      )}
      <Divider label="Hash chain" labelPosition="left" />
      <Stack gap={6} component="dl" m={0}>
        <Fact name="Place">
          {entry.seq} of {entry.chain}
        </Fact>
        <Fact name="Hash">
          <Copyable value={entry.hash} shown={`${shortDigest(entry.hash)}…`} label="hash" />
        </Fact>
        <Fact name="Before it">
          <Copyable
            value={entry.prev_hash}
            shown={`${shortDigest(entry.prev_hash)}…`}
            label="previous hash"
          />
        </Fact>
        <Fact name="Entry">
          <Copyable value={entry.id} label="entry" />
        </Fact>
      </Stack>
    </Stack>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <Box display="grid" style={{ gridTemplateColumns: "110px minmax(0, 1fr)", gap: 8 }}>
      <Text component="dt" size="sm" c="dimmed">
        {name}
      </Text>
      <Box component="dd" m={0} fz="sm" style={{ overflowWrap: "anywhere" }}>
        {children}
      </Box>
    </Box>
  );
}
