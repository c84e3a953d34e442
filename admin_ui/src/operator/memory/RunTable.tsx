/** The same as the map, as a table of runs. */

import { useMemo } from "react";
import { type Column, DataTable } from "../../components/DataTable";
import { formatCount } from "../../components/format";
import {
  CACHED,
  FREE,
  KINDS,
  ordersOf,
  type Run,
  runsOf,
  type Snapshot,
  spanOf,
  tenantLabel,
} from "./model";

export function RunTable({ snapshot }: { snapshot: Snapshot }) {
  const { arena, view } = snapshot;
  const rows = useMemo(() => runsOf(arena), [arena]);
  const orders = useMemo(
    () => ordersOf(view.total_pages, view.departures),
    [view.total_pages, view.departures],
  );
  const ownerOf = ({ owner }: Run) => arena.table[owner];
  const columns: Column<Run>[] = [
    { key: "first", header: "First page", align: "right", cell: ({ first }) => formatCount(first) },
    { key: "count", header: "Pages", align: "right", cell: ({ count }) => formatCount(count) },
    {
      key: "kind",
      header: "Kind",
      cell: (run) => KINDS.find(({ kind }) => kind === run.kind)?.label,
    },
    {
      key: "tenant",
      header: "Tenant",
      cell: (run) => {
        const owner = ownerOf(run);
        return run.kind === FREE || owner === undefined ? "" : tenantLabel(owner);
      },
    },
    {
      key: "adapter",
      header: "Adapter",
      cell: (run) => (run.kind === FREE ? "" : (ownerOf(run)?.adapter ?? "base model")),
    },
    {
      key: "idle",
      header: "Idle",
      align: "right",
      cell: ({ kind, since }) => (kind === CACHED ? spanOf(view.at - since) : ""),
    },
    {
      key: "next",
      header: "Eviction order",
      align: "right",
      cell: ({ first, count }) => {
        const found = orders.subarray(first, first + count).find((order) => order > 0);
        return found ?? "";
      },
    },
  ];
  return (
    <DataTable
      label="Page ranges"
      columns={columns}
      rows={rows}
      rowKey={({ first }) => String(first)}
      rowHeight={34}
      minWidth={620}
      maxHeight={560}
    />
  );
}
