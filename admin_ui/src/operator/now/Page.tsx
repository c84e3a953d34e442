/** Now: one screen that says whether all is well, and where to look if it is not. */

import { Anchor, Group, SimpleGrid, Stack, Text } from "@mantine/core";
import { useEffect, useState } from "react";
import { Link } from "react-router";
import { formatAgo } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { useLive, useLiveSource } from "../../live/context";
import { useStale } from "../../live/stale";
import { Incidents } from "./Incidents";
import {
  attainment,
  errors,
  incidents,
  loads,
  memory,
  probing,
  queue,
  readEngine,
  readProcesses,
  readServing,
  running,
  throughput,
} from "./model";
import { Processes } from "./Processes";
import { useLastHour, useProbing } from "./queries";
import { Tile } from "./Tile";

export default function Page() {
  const hour = useLastHour();
  const probes = useProbing();
  const engine = useLiveSource("engine", readEngine);
  const serving = useLiveSource("engine", readServing);
  const processes = useLiveSource("processes", readProcesses);
  const { status } = useLive();
  const away = useStale(Math.max((engine?.at ?? 0) * 1000, hour.dataUpdatedAt));
  const asleep = useAge(engine !== null && !engine.ready ? (serving?.at ?? null) : null);
  const stale =
    away ?? (engine !== null && !engine.ready ? (asleep ?? "the engine is away") : null);
  const { data } = hour;
  const found = incidents(data, engine, processes);
  return (
    <>
      <PageHeader
        title="Now"
        description="How requests are served right now; the lines show the last hour."
      />
      {hour.isPending && engine === null && <TableSkeleton rows={6} />}
      {hour.error && data === undefined && (
        <ErrorState error={hour.error} onRetry={() => hour.refetch()} />
      )}
      <Stack gap="md">
        <Incidents incidents={found} isKnown={engine !== null && status === "live"} />
        <Panel
          title="Service"
          stale={stale}
          note="The last hour, by the minute"
          action={
            <Group gap="md">
              <Anchor component={Link} to="/operator/service" size="sm">
                By tenant
              </Anchor>
            </Group>
          }
        >
          <SimpleGrid cols={{ base: 1, xs: 2, lg: 3 }} spacing="sm">
            <Tile figure={throughput(data, serving)} />
            <Tile figure={queue(data, serving)} />
            <Tile figure={errors(data)} />
            <Tile figure={running(data, serving)} />
            <Tile figure={loads(data, serving)} />
            <Tile figure={memory(data, serving)} />
          </SimpleGrid>
          {probes.data?.enabled && (
            <SimpleGrid cols={1} mt="sm">
              <Tile figure={probing(probes.data)} />
            </SimpleGrid>
          )}
          <SimpleGrid cols={{ base: 1, xs: 2 }} spacing="sm" mt="sm">
            {attainment(data).map((figure) => (
              <Tile key={figure.key} figure={figure} />
            ))}
          </SimpleGrid>
          {data !== undefined && attainment(data).length === 0 && (
            <Text size="sm" c="dimmed" mt="sm">
              No request had a latency target in the last hour.
            </Text>
          )}
        </Panel>
        <Panel title="Processes" stale={away} padding="0">
          <Processes now={processes} />
        </Panel>
      </Stack>
    </>
  );
}

/** "31 s old", anew each second; null without a time. */
function useAge(atS: number | null): string | null {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  return atS === null ? null : formatAgo(atS, now / 1000).replace(" ago", " old");
}
