/** The matrix: rows who waited, columns because of what, a cell the seconds, shaded by how many. */

import { Anchor, Table, Text } from "@mantine/core";
import { Link } from "react-router";
import { Scrollable } from "../../components/Scrollable";
import { TenantDot } from "../../components/TenantName";
import { type Cell, formatSeconds, type Matrix, type Row, requestsOf, shadeOf } from "./model";
import classes from "./WaitMatrix.module.css";

interface WaitMatrixProps {
  matrix: Matrix;
  startS: number;
  endS: number;
}

export function WaitMatrix({ matrix, startS, endS }: WaitMatrixProps) {
  if (matrix.rows.length === 0) {
    return (
      <Text size="sm" c="dimmed" p="md">
        No request waited in this period.
      </Text>
    );
  }
  const link = (row: Row) => requestsOf(row.tenantId, startS, endS);
  return (
    <Scrollable label="Wait time by tenant and cause, in seconds">
      <Table horizontalSpacing="sm" verticalSpacing={6} className={classes.matrix}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th scope="col">Tenant</Table.Th>
            {matrix.columns.map(({ key, label }) => (
              <Table.Th key={key} scope="col" ta="right">
                {label}
              </Table.Th>
            ))}
            <Table.Th scope="col" ta="right">
              Total
            </Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {matrix.rows.map((row) => (
            <Table.Tr key={row.tenantId}>
              <Table.Th scope="row" className={classes.who}>
                <TenantDot id={row.tenantId} /> {row.name}
              </Table.Th>
              {matrix.columns.map(({ key, because }) => {
                const cell = row.cells.get(key);
                return (
                  <Table.Td
                    key={key}
                    ta="right"
                    className={classes.cell}
                    data-shade={shadeOf(cell?.seconds ?? 0, matrix.most)}
                  >
                    {cell && <Seconds cell={cell} what={`${row.name} ${because}`} to={link(row)} />}
                  </Table.Td>
                );
              })}
              <Table.Td ta="right" fw={600}>
                <Seconds cell={row.total} what={`${row.name}, total`} to={link(row)} />
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Scrollable>
  );
}

interface SecondsProps {
  cell: Cell;
  /** "acme behind beta's queue" */
  what: string;
  to: string | null;
}

function Seconds({ cell, what, to }: SecondsProps) {
  const written = formatSeconds(cell.seconds);
  const exact = `${cell.seconds.toFixed(3)} s, ${cell.sequences} sequences`;
  if (to === null) return <span title={exact}>{written}</span>;
  return (
    <Anchor
      component={Link}
      to={to}
      title={exact}
      aria-label={`${written}: ${what}, ${cell.sequences} sequences`}
      c="inherit"
      size="sm"
      className="numbers"
    >
      {written}
    </Anchor>
  );
}
