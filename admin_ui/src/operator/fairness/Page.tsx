/** Who waited because of whom, whether shares were kept, and how far the proof was from being needed. */

import { Alert, SimpleGrid, Stack, Text } from "@mantine/core";
import { IconScale } from "@tabler/icons-react";
import { formatPart } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { RangePicker, useRange } from "../../components/range";
import { Stat } from "../../components/Stat";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { useStale } from "../../live/stale";
import { Gap } from "./Gap";
import { formatSeconds, matrixOf, nearestGap, sentenceOf, type Wait } from "./model";
import { useFairness, useWaits } from "./queries";
import { Shares } from "./Shares";
import { WaitMatrix } from "./WaitMatrix";

export default function Page() {
  const range = useRange("1h");
  const waits = useWaits(range.startS, range.endS);
  const fairness = useFairness(range.startS, range.endS);
  const stale = useStale(waits.dataUpdatedAt);
  const error = waits.error ?? fairness.error;
  const retry = () => void Promise.all([waits.refetch(), fairness.refetch()]);
  const data = waits.data?.data;
  const classes = fairness.data?.classes;
  return (
    <>
      <PageHeader
        title="Fairness"
        description="The engine takes each wait apart, second by second: behind whose requests, for whose memory, or its own doing."
        action={<RangePicker range={range} />}
      />
      {error && <ErrorState error={error} onRetry={retry} />}
      {!error && (data === undefined || classes === undefined) && <TableSkeleton rows={6} />}
      {data && classes && (
        <Stack gap="lg">
          <Alert color="teal" icon={<IconScale size={18} />} role="status">
            <Text size="sm" data-testid="sentence">
              {sentenceOf(data, classes)}
            </Text>
          </Alert>
          <Figures waits={data} nearest={nearestGap(classes)?.part ?? null} />
          {data.length === 0 && classes.length === 0 ? (
            <EmptyState icon={<IconScale size={24} />} title="Nothing was asked for in this time">
              As soon as requests wait, this page says because of whom.
            </EmptyState>
          ) : (
            <>
              <Panel
                title="Who waited because of whom"
                note="Seconds of all sequences, summed. Each leads to the tenant's requests, longest wait first."
                stale={stale}
                padding="0"
              >
                <WaitMatrix matrix={matrixOf(data)} startS={range.startS} endS={range.endS} />
              </Panel>
              <Panel
                title="Service against weight"
                note="The line is the part that a tenant's weight gives it while all of them ask for more. Who asks for less has less, and others have what it leaves."
                stale={stale}
                padding="0"
              >
                <Shares classes={classes} />
              </Panel>
              <Panel
                title="Service gap against its proven bound"
                note="The largest difference of service over weight between two tenants that wait, in tokens prefilled by the base model. It stays below the bound while both have something that can start."
                stale={stale}
              >
                <Gap
                  classes={classes}
                  startS={range.startS}
                  endS={range.endS}
                  onBrush={range.zoom}
                />
              </Panel>
            </>
          )}
        </Stack>
      )}
    </>
  );
}

const seconds = (waits: readonly Wait[]) => waits.reduce((sum, each) => sum + each.seconds, 0);

function Figures({ waits, nearest }: { waits: readonly Wait[]; nearest: number | null }) {
  const others = waits.filter((each) => each.other_id !== null);
  const loads = waits.filter((each) => each.cause === "load");
  return (
    <SimpleGrid cols={{ base: 2, md: 4 }}>
      <Stat label="Waited in all" value={formatSeconds(seconds(waits))} hint="of all sequences" />
      <Stat
        label="Because of others"
        value={formatSeconds(seconds(others))}
        hint="their queue, their pages"
      />
      <Stat
        label="Adapter loads"
        value={formatSeconds(seconds(loads))}
        hint="that nothing else kept waiting"
      />
      <Stat
        label="Gap, of its bound"
        value={formatPart(nearest)}
        hint={nearest === null ? "nobody waited beside another" : "at its nearest"}
      />
    </SimpleGrid>
  );
}
