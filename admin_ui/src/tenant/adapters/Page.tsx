/** A tenant's adapters: what each name serves now, its traffic and cost, where its bytes are. */

import { Anchor, Badge, Box, Button, Group, Text, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { IconSearch, IconStack2, IconUpload } from "@tabler/icons-react";
import { useCallback, useEffect, useMemo, useState } from "react";
import { Link, useNavigate } from "react-router";
import { type Column, DataTable } from "../../components/DataTable";
import { formatBytes, formatCompact, formatCount } from "../../components/format";
import { Money } from "../../components/Money";
import { PageHeader } from "../../components/PageHeader";
import { useParam } from "../../components/SidePanel";
import { Sparkline } from "../../components/Sparkline";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { useMayUpload, useUploads } from "../upload/context";
import { type Adapter, notServing, servesText, standing, tierOf } from "./model";
import { useAdapterPages } from "./queries";
import { TierBadge } from "./StateBadge";

const DEFAULT_SORT = "-created";

export default function AdaptersPage() {
  const uploads = useUploads();
  const mayUpload = useMayUpload();
  const navigate = useNavigate();
  const [q, setQ] = useSearchText();
  const [sort, setSort] = useParam("sort");
  const pages = useAdapterPages(q.settled, sort ?? DEFAULT_SORT);
  const { fetchNextPage } = pages;
  const more = useCallback(() => void fetchNextPage(), [fetchNextPage]);
  const rows = useMemo(() => pages.data?.pages.flatMap(({ data }) => data) ?? [], [pages.data]);
  const open = useCallback(({ name }: Adapter) => void navigate(pathOf(name)), [navigate]);
  const total = pages.data?.pages[0]?.total;
  const isEmpty = total === 0 && q.settled === "";
  const columns = useMemo(() => COLUMNS.filter((column) => isShown(column, rows)), [rows]);
  const upload = mayUpload && (
    <Button leftSection={<IconUpload size={16} />} onClick={() => uploads.choose()}>
      Upload
    </Button>
  );

  return (
    <>
      <PageHeader
        title="Adapters"
        description="LoRA adapters on one shared base model. To use one, set the request field `model` to its name."
        action={upload}
      />
      {pages.isPending && <TableSkeleton />}
      {pages.error && !pages.data && (
        <ErrorState error={pages.error} onRetry={() => pages.refetch()} />
      )}
      {isEmpty && (
        <EmptyState icon={<IconStack2 size={24} />} title="No adapters yet" action={upload}>
          Train an adapter with PEFT on the base model, then upload the folder that PEFT saved.
          Until then, you can use the base model in the playground.
        </EmptyState>
      )}
      {pages.data && !isEmpty && (
        <>
          <Group mb="sm" gap="md">
            <TextInput
              aria-label="Search adapters"
              placeholder="Name or digest"
              leftSection={<IconSearch size={16} />}
              value={q.text}
              onChange={(event) => setQ(event.currentTarget.value)}
              w={{ base: "100%", xs: 280 }}
            />
            <Text size="sm" c="dimmed" role="status" className="numbers">
              {total === undefined
                ? ""
                : `${formatCount(total)} ${total === 1 ? "adapter" : "adapters"}`}
            </Text>
          </Group>
          <DataTable
            label="Adapters"
            columns={columns}
            rows={rows}
            rowKey={({ id }) => id}
            total={total}
            sort={sort ?? DEFAULT_SORT}
            onSort={setSort}
            hasMore={pages.hasNextPage}
            isLoadingMore={pages.isFetchingNextPage}
            onMore={more}
            onRow={open}
            rowHeight={56}
            minWidth={900}
          />
          {total === 0 && (
            <Text c="dimmed" ta="center" mt="lg">
              No adapter has “{q.settled}” in its name or digest.
            </Text>
          )}
        </>
      )}
    </>
  );
}

export function pathOf(name: string): string {
  return `/adapters/${encodeURIComponent(name)}`;
}

/** What is typed, and what is looked for once the typing has settled; the address keeps it. */
function useSearchText(): [{ text: string; settled: string }, (text: string) => void] {
  const [kept, keep] = useParam("q");
  const [text, setText] = useState(kept ?? "");
  const [settled] = useDebouncedValue(text.trim(), 200);
  // biome-ignore lint/correctness/useExhaustiveDependencies: when the typing has settled, no sooner
  useEffect(() => {
    if (settled !== (kept ?? "")) keep(settled || null);
  }, [settled]);
  return [{ text, settled }, setText];
}

const USAGE_COLUMNS = ["requests", "tokens", "cost"];

/** Without the scope nothing is told of usage, so there is nothing to show. */
function isShown({ key }: Column<Adapter>, rows: readonly Adapter[]): boolean {
  return !USAGE_COLUMNS.includes(key) || rows.length === 0 || rows.some(({ traffic }) => traffic);
}

const COLUMNS: readonly Column<Adapter>[] = [
  { key: "name", header: "Name", sort: "name", cell: (adapter) => <Name adapter={adapter} /> },
  { key: "serves", header: "Currently serving", cell: (adapter) => <Serves adapter={adapter} /> },
  {
    key: "requests",
    header: "Requests, 24 h",
    sort: "-requests",
    align: "right",
    width: 170,
    cell: ({ name, traffic }) =>
      traffic && (
        <Group gap="xs" wrap="nowrap" justify="flex-end">
          {traffic.requests > 0 && (
            <Box w={72} c="teal" visibleFrom="sm">
              <Sparkline
                values={traffic.requests_by_hour}
                label={`Requests of ${name} by hour`}
                height={22}
              />
            </Box>
          )}
          <Text size="sm" className="numbers">
            {formatCount(traffic.requests)}
          </Text>
        </Group>
      ),
  },
  {
    key: "tokens",
    header: "Tokens, 24 h",
    align: "right",
    cell: ({ traffic }) =>
      traffic && (
        <Text
          size="sm"
          className="numbers"
          title={`${formatCount(traffic.prompt_tokens)} in, ${formatCount(traffic.output_tokens)} out`}
        >
          {formatCompact(traffic.total_tokens)}
        </Text>
      ),
  },
  {
    key: "cost",
    header: "Cost this month",
    sort: "-cost",
    align: "right",
    cell: ({ month_costs }) => month_costs && <Money of={month_costs} />,
  },
  { key: "tier", header: "Location", cell: (adapter) => <TierBadge tier={tierOf(adapter)} /> },
  {
    key: "rank",
    header: "Rank",
    align: "right",
    cell: ({ serving, rank }) => serving.versions[0]?.rank ?? rank ?? "–",
  },
  {
    key: "size",
    header: "Size",
    align: "right",
    cell: ({ serving, bytes }) => (
      <Text size="sm" className="numbers" style={{ whiteSpace: "nowrap" }}>
        {formatBytes(serving.versions[0]?.bytes ?? bytes)}
      </Text>
    ),
  },
];

function Name({ adapter }: { adapter: Adapter }) {
  const { name, versions } = adapter;
  return (
    <>
      <Anchor component={Link} to={pathOf(name)} fw={550} size="sm">
        {name}
      </Anchor>
      <Text size="xs" c="dimmed">
        {versions.length === 1 ? "1 version" : `${formatCount(versions.length)} versions`}
      </Text>
    </>
  );
}

/** What answers; what was uploaded after it and does not is a footnote. */
function Serves({ adapter }: { adapter: Adapter }) {
  const { word, color } = standing(adapter);
  const waits = notServing(adapter);
  return (
    <>
      <Group gap={6} wrap="nowrap">
        <Badge color={color} miw="max-content">
          {word}
        </Badge>
        {adapter.serving.versions.length > 0 && (
          <Text size="sm" className="numbers" truncate>
            {servesText(adapter)}
            {adapter.serving.alias && (
              <Text span size="xs" c="dimmed">
                {" "}
                by @{adapter.serving.alias}
              </Text>
            )}
          </Text>
        )}
      </Group>
      {waits.length > 0 && adapter.serving.versions.length > 0 && (
        <Text size="xs" c="dimmed">
          {waits
            .slice(0, 2)
            .map(({ version, state }) => `v${version} ${state}`)
            .join(", ")}
          {waits.length > 2 && `, ${waits.length - 2} more`}
        </Text>
      )}
    </>
  );
}
