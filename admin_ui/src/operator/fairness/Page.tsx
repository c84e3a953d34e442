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
        description="Why requests waited, and whether each tenant received its share. Every second in the queue is attributed to one cause."
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
            <EmptyState icon={<IconScale size={24} />} title="No requests in this period">
              When requests wait, this page shows what they waited for. Choose a longer period to
              see earlier ones.
            </EmptyState>
          ) : (
            <>
              <Panel
                title="Wait time by cause"
                note="Rows: the tenant that waited. Columns: the cause. Times are summed over all sequences; darker is longer. Select a cell to see the requests."
                stale={stale}
                padding="0"
              >
                <WaitMatrix matrix={matrixOf(data)} startS={range.startS} endS={range.endS} />
              </Panel>
              <Panel
                title="Share of service"
                note="Bar: the tenant's share of the service in its class. Vertical line: the share that its weight entitles it to under full load. Unused shares go to other tenants."
                stale={stale}
                padding="0"
              >
                <Shares classes={classes} />
              </Panel>
              <Panel
                title="Service gap and its bound"
                note="The largest difference in weighted service between two tenants that waited at the same time, in prefill tokens of the base model. Fair scheduling keeps it below its proven bound."
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
      <Stat
        label="Total wait time"
        value={formatSeconds(seconds(waits))}
        hint="summed over all sequences"
      />
      <Stat
        label="Caused by other tenants"
        value={formatSeconds(seconds(others))}
        hint="by their queue or memory"
      />
      <Stat
        label="Adapter loads"
        value={formatSeconds(seconds(loads))}
        hint="waits caused only by loading"
      />
      <Stat
        label="Largest service gap"
        value={formatPart(nearest)}
        hint={nearest === null ? "no two tenants waited at the same time" : "of its proven bound"}
      />
    </SimpleGrid>
  );
}
