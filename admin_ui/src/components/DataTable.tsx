/**
 * Rows of any number in a real table: only those in sight are drawn, the next page is asked of the
 * server when its end comes near, and sorting is the server's.
 */

import { Card, Loader, UnstyledButton } from "@mantine/core";
import { IconArrowDown, IconArrowUp } from "@tabler/icons-react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, type ReactNode, useEffect, useRef } from "react";
import classes from "./DataTable.module.css";
import { Scrollable } from "./Scrollable";

export interface Column<Row> {
  key: string;
  header: string;
  cell: (row: Row) => ReactNode;
  /** Numbers stand right. */
  align?: "left" | "right";
  width?: number | string;
  /** By which the server sorts, descending first where it begins with "-". */
  sort?: string;
}

interface DataTableProps<Row> {
  label: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string;
  /** Rows there are in all, where the server says so. */
  total?: number;
  sort?: string;
  onSort?: (sort: string) => void;
  hasMore?: boolean;
  isLoadingMore?: boolean;
  onMore?: () => void;
  onRow?: (row: Row) => void;
  rowHeight?: number;
  minWidth?: number;
  maxHeight?: number | string;
}

const AHEAD = 12;

export function DataTable<Row>(props: DataTableProps<Row>) {
  const { columns, rows, rowKey, hasMore, isLoadingMore, onMore, rowHeight = 44 } = props;
  const scroller = useRef<HTMLElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    overscan: AHEAD,
    scrollPaddingStart: rowHeight,
  });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? -1;
  useEffect(() => {
    if (hasMore && !isLoadingMore && last >= rows.length - AHEAD) onMore?.();
  }, [hasMore, isLoadingMore, last, rows.length, onMore]);
  const before = items[0]?.start ?? 0;
  const after = virtual.getTotalSize() - (items.at(-1)?.end ?? 0);
  return (
    <Card p={0} className={classes.card}>
      <Scrollable
        ref={scroller}
        label={props.label}
        style={{ maxHeight: props.maxHeight ?? "calc(100dvh - 220px)" }}
      >
        <table
          className={classes.table}
          aria-label={props.label}
          aria-rowcount={(props.total ?? (hasMore ? -2 : rows.length)) + 1}
          style={{ minWidth: props.minWidth ?? 640 }}
        >
          <Head {...props} />
          <tbody>
            {before > 0 && <Gap height={before} columns={columns.length} />}
            {items.map(({ index }) => {
              const row = rows[index];
              return row === undefined ? null : (
                <Line
                  key={rowKey(row)}
                  row={row}
                  index={index}
                  columns={columns}
                  onRow={props.onRow}
                  height={rowHeight}
                />
              );
            })}
            {after > 0 && <Gap height={after} columns={columns.length} />}
          </tbody>
        </table>
        {isLoadingMore && <Loader size="sm" m="sm" aria-label="Loading more" />}
      </Scrollable>
    </Card>
  );
}

function Gap({ height, columns }: { height: number; columns: number }) {
  return (
    <tr aria-hidden>
      <td colSpan={columns} className={classes.gap} style={{ height }} />
    </tr>
  );
}

function Head<Row>({ columns, sort, onSort }: DataTableProps<Row>) {
  return (
    <thead>
      <tr aria-rowindex={1}>
        {columns.map((column) => {
          const by = column.sort?.replace(/^-/, "");
          const sorted = by !== undefined && sort?.replace(/^-/, "") === by;
          const descending = sorted && sort?.startsWith("-");
          const next = sorted ? (descending ? by : `-${by}`) : column.sort;
          return (
            <th
              key={column.key}
              scope="col"
              style={{ width: column.width, textAlign: column.align }}
              aria-sort={sorted ? (descending ? "descending" : "ascending") : undefined}
            >
              {next !== undefined && onSort ? (
                <UnstyledButton className={classes.sort} onClick={() => onSort(next)}>
                  {column.header}
                  {sorted && (descending ? <IconArrowDown size={13} /> : <IconArrowUp size={13} />)}
                </UnstyledButton>
              ) : (
                column.header
              )}
            </th>
          );
        })}
      </tr>
    </thead>
  );
}

interface LineProps<Row> {
  row: Row;
  index: number;
  columns: readonly Column<Row>[];
  onRow?: (row: Row) => void;
  height: number;
}

/** A click anywhere opens the row; by keyboard its link or button does, which a cell has to hold. */
function PlainLine<Row>({ row, index, columns, onRow, height }: LineProps<Row>) {
  return (
    <tr
      aria-rowindex={index + 2}
      className={onRow ? classes.clickable : undefined}
      onClick={onRow ? ({ target }) => isPlain(target) && onRow(row) : undefined}
      style={{ height }}
    >
      {columns.map((column) => (
        <td key={column.key} style={{ textAlign: column.align }}>
          {column.cell(row)}
        </td>
      ))}
    </tr>
  );
}

/** A link or button within the row has said itself what its click does. */
function isPlain(target: EventTarget): boolean {
  return target instanceof Element && target.closest("a, button") === null;
}

/** Drawn once while its row, and the table's `columns` and `onRow`, are the same objects. */
const Line = memo(PlainLine) as typeof PlainLine;
