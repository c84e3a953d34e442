/** Requests in rows, as many as there are; the server sorts and gives them page by page. */

import { Anchor, Text } from "@mantine/core";
import { useCallback, useMemo } from "react";
import { Link, useNavigate } from "react-router";
import { type Column, DataTable } from "../components/DataTable";
import { formatCount, formatMs, zoneName } from "../components/format";
import { Money } from "../components/Money";
import { TenantName } from "../components/TenantName";
import { kindWord, type RequestItem, tpotOf } from "./model";
import { StatusBadge } from "./StatusBadge";

interface RequestTableProps {
  requests: readonly RequestItem[];
  addressOf: (id: string) => string;
  sort: string;
  onSort: (sort: string) => void;
  hasMore: boolean;
  isLoadingMore: boolean;
  onMore: () => void;
  /** The operator's: names by tenant. */
  tenants?: ReadonlyMap<string, string>;
}

export function RequestTable({ requests, tenants, addressOf, ...more }: RequestTableProps) {
  const navigate = useNavigate();
  const columns = useMemo(() => columnsOf(addressOf, tenants), [addressOf, tenants]);
  const open = useCallback(
    ({ id }: RequestItem) => void navigate(addressOf(id)),
    [navigate, addressOf],
  );
  return (
    <DataTable
      label="Requests"
      columns={columns}
      rows={requests}
      rowKey={({ id }) => id}
      onRow={open}
      minWidth={tenants ? 1210 : 1090}
      rowHeight={40}
      maxHeight="calc(100dvh - 300px)"
      {...more}
      onSort={(sort) => more.onSort(sort.startsWith("-") ? sort : "newest")}
    />
  );
}

function columnsOf(
  addressOf: (id: string) => string,
  tenants?: ReadonlyMap<string, string>,
): Column<RequestItem>[] {
  const right = { align: "right" as const };
  const tenant: Column<RequestItem> = {
    key: "tenant",
    header: "Tenant",
    cell: (each) => (
      <TenantName id={each.tenant_id} name={each.tenant_name ?? tenants?.get(each.tenant_id)} />
    ),
  };
  return [
    {
      key: "ended",
      header: `Ended (${zoneName()})`,
      cell: (each) => (
        <Anchor component={Link} to={addressOf(each.id)} size="sm" title={each.id}>
          {moment(each.finished_at)}
        </Anchor>
      ),
    },
    ...(tenants ? [tenant] : []),
    {
      key: "adapter",
      header: "Adapter",
      cell: (each) =>
        each.adapter ?? (
          <Text span size="sm" c="dimmed">
            {each.adapter_digest ? "deleted adapter" : "base model"}
          </Text>
        ),
    },
    { key: "kind", header: "Kind", cell: (each) => kindWord(each.kind) },
    { key: "class", header: "Class", cell: (each) => each.class },
    {
      key: "status",
      header: "Status",
      cell: (each) => (
        <StatusBadge status={each.status} reason={each.finish_reason} kind={each.kind} />
      ),
    },
    {
      key: "prompt",
      header: "Prompt (cached)",
      ...right,
      cell: (each) => `${formatCount(each.prompt_tokens)} (${formatCount(each.cached_tokens)})`,
    },
    { key: "output", header: "Output", ...right, cell: (each) => formatCount(each.output_tokens) },
    {
      key: "queue",
      header: "Queue",
      ...right,
      sort: "-queue",
      cell: (each) => formatMs(each.queue_ms),
    },
    {
      key: "ttft",
      header: "TTFT",
      ...right,
      sort: "-ttft",
      cell: (each) => (each.ttft_ms === null ? "–" : formatMs(each.ttft_ms)),
    },
    {
      key: "tpot",
      header: "TPOT",
      ...right,
      sort: "-tpot",
      cell: (each) => {
        const tpot = each.sequences === 1 ? tpotOf(each) : null;
        return tpot === null ? "–" : formatMs(tpot);
      },
    },
    {
      key: "duration",
      header: "Total",
      ...right,
      sort: "-duration",
      cell: (each) => formatMs(each.duration_ms),
    },
    { key: "cost", header: "Cost", ...right, sort: "-cost", cell: (each) => <Cost of={each} /> },
  ];
}

const MOMENT = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

/** Without the year: a list is of weeks, and its rows are narrow. */
function moment(time: string): string {
  return MOMENT.format(new Date(time));
}

function Cost({ of: { amount, currency, waits_for_price } }: { of: RequestItem }) {
  if (amount === null) return <>several currencies</>;
  if (currency === null) return <>{waits_for_price ? "not priced yet" : "–"}</>;
  return <Money of={{ amount, currency }} />;
}
