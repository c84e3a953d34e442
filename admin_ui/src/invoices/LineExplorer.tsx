/** A line taken apart: by day, adapter, key and at last by request, each part down from the last. */

import { Anchor, Badge, CloseButton, Group, SegmentedControl, Stack, Text } from "@mantine/core";
import { Link } from "react-router";
import { type Column, DataTable } from "../components/DataTable";
import { formatCount, formatMoment, formatMoney } from "../components/format";
import { useQueryParams } from "../components/searchParams";
import { ErrorState, TableSkeleton } from "../components/states";
import {
  BASE_MODEL,
  equation,
  GROUPS,
  type LineGroup,
  type LinePart,
  nameOf,
  narrowed,
  nextGroup,
} from "./model";
import { type Invoice, type LineDetail, type Side, useLine } from "./queries";

interface LineExplorerProps {
  side: Side;
  invoice: Invoice;
  no: number;
  requestAddress: (id: string) => string;
}

const PARTS = ["day", "adapter", "api_key"] as const;

/** The part of the line that the address says, and how it is taken apart. */
function usePart(): [LinePart, LineGroup, (part: LinePart, by: LineGroup) => void] {
  const [params, setParams] = useQueryParams();
  const part: LinePart = {};
  for (const name of PARTS) {
    const value = params.get(`line_${name}`);
    if (value !== null) part[name] = value;
  }
  const wanted = GROUPS.find(({ value }) => value === params.get("line_by"))?.value;
  const set = (next: LinePart, by: LineGroup) =>
    setParams((before) => {
      for (const name of PARTS) {
        const value = next[name];
        if (value === undefined) before.delete(`line_${name}`);
        else before.set(`line_${name}`, value);
      }
      before.set("line_by", by);
      return before;
    });
  return [part, wanted ?? nextGroup(part), set];
}

export function LineExplorer({ side, invoice, no, requestAddress }: LineExplorerProps) {
  const [part, by, set] = usePart();
  const found = useLine(side, invoice.id, no, by, part);
  const line = invoice.lines.find((each) => each.no === no);
  const rows = found.data?.pages.flatMap((page) => page.data) ?? [];
  const down = (row: LineDetail) => {
    const next = narrowed(part, by, row);
    set(next, nextGroup(next));
  };
  return (
    <Stack gap="sm">
      {line && (
        <Text size="sm">
          {equation(line, invoice.currency)} ={" "}
          <strong>{formatMoney(line.exact_amount, invoice.currency)}</strong>, invoiced as{" "}
          {formatMoney(line.amount, invoice.currency)}.
        </Text>
      )}
      <Group gap="xs">
        {PARTS.filter((name) => part[name] !== undefined).map((name) => (
          <Badge
            key={name}
            color="gray"
            rightSection={
              <CloseButton
                size="xs"
                aria-label={`Remove filter: ${part[name] || BASE_MODEL}`}
                onClick={() => {
                  const { [name]: _, ...rest } = part;
                  set(rest, nextGroup(rest));
                }}
              />
            }
          >
            {part[name] || BASE_MODEL}
          </Badge>
        ))}
      </Group>
      <SegmentedControl
        size="xs"
        aria-label="Group by"
        data={GROUPS.map((each) => ({ ...each }))}
        value={by}
        onChange={(value) => set(part, value as LineGroup)}
      />
      {found.isPending && <TableSkeleton />}
      {found.error && !found.data && (
        <ErrorState error={found.error} onRetry={() => found.refetch()} />
      )}
      {found.data && (
        <DataTable
          label={`Line by ${by === "api_key" ? "API key" : by}`}
          columns={columnsOf(by, invoice.currency, down, requestAddress)}
          rows={rows}
          rowKey={(row) => row.event_id ?? nameOf(by, row)}
          minWidth={420}
          maxHeight="60dvh"
          hasMore={found.hasNextPage}
          isLoadingMore={found.isFetchingNextPage}
          onMore={() => void found.fetchNextPage()}
        />
      )}
      {found.data && rows.length === 0 && (
        <Text size="sm" c="dimmed">
          No usage on this line matches these filters.
        </Text>
      )}
    </Stack>
  );
}

function columnsOf(
  by: LineGroup,
  currency: string,
  down: (row: LineDetail) => void,
  requestAddress: (id: string) => string,
): Column<LineDetail>[] {
  return [
    {
      key: "name",
      header: GROUPS.find(({ value }) => value === by)?.label ?? "",
      cell: (row) =>
        by !== "request" ? (
          <Anchor component="button" type="button" size="sm" onClick={() => down(row)}>
            {nameOf(by, row)}
          </Anchor>
        ) : row.request_id ? (
          <Anchor component={Link} to={requestAddress(row.request_id)} size="sm">
            {nameOf(by, row)}
          </Anchor>
        ) : (
          nameOf(by, row)
        ),
    },
    ...(by === "request"
      ? [
          {
            key: "time",
            header: "Ended",
            cell: (row: LineDetail) => (row.time ? formatMoment(row.time) : "–"),
          },
        ]
      : []),
    {
      key: "quantity",
      header: "Quantity",
      align: "right" as const,
      cell: (row) => formatCount(row.quantity),
    },
    {
      key: "amount",
      header: "Exact amount",
      align: "right" as const,
      cell: (row) => formatMoney(row.amount, currency),
    },
  ];
}
