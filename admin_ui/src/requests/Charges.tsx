/** What a request costs, line by line: quantity x price / 10^6 = amount, by which price version. */

import { Table, Text } from "@mantine/core";
import { formatCount, formatMoney } from "../components/format";
import { Scrollable } from "../components/Scrollable";
import type { Receipt, Sequence } from "./model";

const METERS: Record<string, string> = {
  uncached_prefill: "Prompt tokens",
  cached_prefill: "Cached prompt tokens",
  output: "Output tokens",
  cold_load: "Adapter loads",
};

export function Charges({ receipt }: { receipt: Receipt }) {
  const many = receipt.sequences.length > 1;
  return (
    <Scrollable label="Charges">
      <Table miw={620} aria-label="Charges" verticalSpacing={6} horizontalSpacing="sm">
        <Table.Thead>
          <Table.Tr>
            {many && <Table.Th>Sequence</Table.Th>}
            <Table.Th>Meter</Table.Th>
            <Table.Th ta="right">Quantity × price / 1,000,000</Table.Th>
            <Table.Th ta="right">Amount</Table.Th>
            <Table.Th>Price version</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {receipt.sequences.map((sequence) => (
            <SequenceRows key={sequence.sequence} sequence={sequence} isNamed={many} />
          ))}
        </Table.Tbody>
        {receipt.amount !== null && receipt.currency !== null && (
          <Table.Tfoot>
            <Table.Tr>
              <Table.Th colSpan={many ? 3 : 2} ta="right">
                Total
              </Table.Th>
              <Table.Th ta="right" data-testid="amount">
                {formatMoney(receipt.amount, receipt.currency)}
              </Table.Th>
              <Table.Td />
            </Table.Tr>
          </Table.Tfoot>
        )}
      </Table>
    </Scrollable>
  );
}

function SequenceRows({ sequence, isNamed }: { sequence: Sequence; isNamed: boolean }) {
  const { meters, currency } = sequence;
  if (meters === null || meters.length === 0 || currency === null)
    return (
      <Table.Tr>
        {isNamed && <Table.Td>{sequence.sequence}</Table.Td>}
        <Table.Td colSpan={4}>
          <Text size="sm" c="dimmed">
            {sequence.waits_because
              ? `Not priced yet: ${sequence.waits_because}`
              : "No billable usage."}
          </Text>
        </Table.Td>
      </Table.Tr>
    );
  return meters.map((line) => (
    <Table.Tr key={line.meter}>
      {isNamed && <Table.Td>{sequence.sequence}</Table.Td>}
      <Table.Td>{METERS[line.meter] ?? line.meter}</Table.Td>
      <Table.Td ta="right">
        {line.parts.map(({ quantity, per_million }) => (
          <Text key={`${per_million} ${quantity}`} size="sm" className="numbers">
            {formatCount(quantity)} × {formatMoney(per_million, currency)}
          </Text>
        ))}
      </Table.Td>
      <Table.Td ta="right">{formatMoney(line.amount, currency)}</Table.Td>
      <Table.Td>
        <Text size="xs" ff="monospace" c="dimmed">
          {sequence.price_version}
        </Text>
      </Table.Td>
    </Table.Tr>
  ));
}
