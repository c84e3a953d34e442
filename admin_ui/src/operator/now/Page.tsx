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
import { booksOf, incidents } from "./incidents";
import {
  attainment,
  errors,
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
import { useBooks, useHourByTenant, useLastHour, useProbing } from "./queries";
import { Tile } from "./Tile";

/** After so long the page is shown with what it has. */
const PATIENCE_MS = 3_000;

export default function Page() {
  const hour = useLastHour();
  const byTenant = useHourByTenant();
  const probes = useProbing();
  const engine = useLiveSource("engine", readEngine);
  const serving = useLiveSource("engine", readServing);
  const processes = useLiveSource("processes", readProcesses);
  const { status } = useLive();
  const nowS = useNow() / 1000;
  const away = useStale(Math.max((engine?.at ?? 0) * 1000, hour.dataUpdatedAt));
  const isDown = engine !== null && !engine.ready;
  const asleep = isDown && serving !== null ? ageOf(serving.at, nowS) : null;
  const stale = away ?? (isDown ? (asleep ?? "no data from the engine") : null);
  const { data } = hour;
  const toldOf = processes?.warnings.map(({ about }) => about) ?? [];
  const books = useBooks(toldOf.includes("unbilled") || toldOf.includes("books"));
  const found = incidents({
    byTenant: byTenant.data,
    hour: data,
    engine,
    processes,
    books: booksOf(books),
    nowS,
  });
  // All at once: what comes piece by piece moves what is being read.
  const isWhole = !hour.isPending && !byTenant.isPending && !probes.isPending;
  const isShown = useOnce((isWhole && engine !== null && processes !== null) || hour.isError);
  return (
    <>
      <PageHeader
        title="Now"
        description="Current state of the service. The charts show the last hour."
      />
      {hour.error && data === undefined && (
        <ErrorState error={hour.error} onRetry={() => hour.refetch()} />
      )}
      {!isShown && <TableSkeleton rows={12} />}
      {isShown && (
        <Stack gap="md">
          <Incidents incidents={found} isKnown={engine !== null && status === "live"} nowS={nowS} />
          <Panel
            title="Service"
            stale={stale}
            note="Last hour, by minute"
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
              <Tile figure={errors(data)} to="/operator/rejected?range=1h" />
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
                <Tile key={figure.key} figure={figure} to="/operator/service" />
              ))}
            </SimpleGrid>
            {data !== undefined && attainment(data).length === 0 && (
              <Text size="sm" c="dimmed" mt="sm">
                No request had a latency target in the last hour.
              </Text>
            )}
          </Panel>
          <div id="processes">
            <Panel title="Processes" stale={away} padding="0">
              <Processes now={processes} />
            </Panel>
          </div>
        </Stack>
      )}
    </>
  );
}

const ageOf = (atS: number, nowS: number) => formatAgo(atS, nowS).replace(" ago", " old");

/** ms since the epoch, anew each second. */
function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** Whether it was ever so, or the patience has ended. */
function useOnce(isSo: boolean): boolean {
  const [wasSo, setWasSo] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setWasSo(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, []);
  if (isSo && !wasSo) setWasSo(true);
  return wasSo || isSo;
}
