/** What was used and what it costs: by adapter, key, class or kind, by day or hour. */

import { Button, Group, SegmentedControl, Select } from "@mantine/core";
import { IconChartBar, IconDownload } from "@tabler/icons-react";
import { useMemo } from "react";
import { useNavigate } from "react-router";
import { useSession } from "../../api/context";
import { PageHeader } from "../../components/PageHeader";
import { useQueryParams } from "../../components/searchParams";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { useStale } from "../../live/stale";
import { GROUPS, MEASURES, months, SPANS, viewOf, windowOf } from "./model";
import { useKeyNames, useUsage, useUsageFile } from "./queries";
import { Totals } from "./Totals";
import { UsageCharts } from "./UsageCharts";
import { UsageTable } from "./UsageTable";

const MONTHS = 12;
const NO_NAMES: ReadonlyMap<string, string> = new Map();

export default function Page() {
  const navigate = useNavigate();
  const [params, setParams] = useQueryParams();
  const may = useSession().session?.place?.may ?? [];
  const keys = useKeyNames(may.includes("keys")).data ?? NO_NAMES;
  const nowS = Math.floor(Date.now() / 3_600_000) * 3600;
  const offered = useMemo(() => months(nowS, MONTHS), [nowS]);
  const period = params.get("period") ?? offered[0]?.value ?? "";
  const by = GROUPS.find(({ value }) => value === params.get("by"))?.value ?? "adapter";
  const measure = MEASURES.find(({ value }) => value === params.get("of"))?.value ?? "cost";
  const window = useMemo(() => windowOf(period, nowS), [period, nowS]);
  const usage = useUsage(window, by, measure);
  const stale = useStale(usage.dataUpdatedAt);
  const file = useUsageFile(window, by, keys);
  const view = useMemo(
    () => (usage.data ? viewOf(usage.data, by, measure, keys) : null),
    [usage.data, by, measure, keys],
  );
  const set = (name: string, value: string | null) =>
    setParams((before) => {
      if (value === null) before.delete(name);
      else before.set(name, value);
      return before;
    });
  const requests = (filter: Record<string, string>, startS: number, endS: number) => {
    const asked = new URLSearchParams({ ...filter, start: String(startS), end: String(endS) });
    return `/requests?${asked}`;
  };
  const isEmpty = view !== null && view.rows.length === 0;
  return (
    <>
      <PageHeader
        title="Usage and cost"
        description="Usage at the prices in force at the time, with exact amounts. Days and months are in UTC."
        action={
          <Button
            variant="default"
            leftSection={<IconDownload size={16} />}
            loading={file.isPending}
            disabled={view === null || isEmpty}
            onClick={() => file.mutate()}
          >
            CSV
          </Button>
        }
      />
      <Group gap="sm" mb="md" align="flex-end">
        <Select
          label="Period"
          size="xs"
          w={170}
          allowDeselect={false}
          data={[
            {
              group: "To date",
              items: Object.entries(SPANS).map(([value, label]) => ({ value, label })),
            },
            { group: "Months", items: offered },
          ]}
          value={period}
          onChange={(value) => set("period", value)}
        />
        <Select
          label="Group by"
          size="xs"
          w={130}
          allowDeselect={false}
          data={GROUPS.map((each) => ({ ...each }))}
          value={by}
          onChange={(value) => set("by", value)}
        />
        <SegmentedControl
          size="xs"
          aria-label="Show"
          data={MEASURES.map((each) => ({ ...each }))}
          value={measure}
          onChange={(value) => set("of", value)}
        />
      </Group>
      {file.error && <ErrorState error={file.error} title="The CSV file could not be created" />}
      {usage.isPending && <TableSkeleton rows={8} />}
      {usage.error && !usage.data && (
        <ErrorState error={usage.error} onRetry={() => usage.refetch()} />
      )}
      {isEmpty && (
        <EmptyState icon={<IconChartBar size={24} />} title="No usage in this period">
          Send a request with the API or in the playground. It appears here within seconds. Or
          choose a longer period.
        </EmptyState>
      )}
      {view && !isEmpty && (
        <>
          <Totals total={view.total} />
          <UsageCharts
            view={view}
            measure={measure}
            by={by}
            isDays={window.bucket === "1d"}
            stale={stale}
            onPick={(startS) =>
              navigate(requests({}, startS, startS + (window.bucket === "1h" ? 3600 : 86_400)))
            }
            onBrush={(startS, endS) => navigate(requests({}, Math.floor(startS), Math.ceil(endS)))}
          />
          <UsageTable
            view={view}
            by={by}
            addressOf={(filter) => requests(filter, window.startS, window.endS)}
          />
        </>
      )}
    </>
  );
}
