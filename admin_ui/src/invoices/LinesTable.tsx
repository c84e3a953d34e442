import { Button, Card, Table, Text } from "@mantine/core";
import { formatMoney } from "../components/format";
import { Scrollable } from "../components/Scrollable";
import { useParam } from "../components/SidePanel";
import { equation, leadsDown } from "./model";
import type { Invoice, InvoiceLine } from "./queries";

/** Every line with its arithmetic; those of usage lead down to what they consist of. */
export function LinesTable({ invoice }: { invoice: Invoice }) {
  return (
    <Card p={0}>
      <Scrollable label="Invoice lines">
        <Table miw={680} aria-label="Invoice lines">
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Line</Table.Th>
              <Table.Th>Quantity × price</Table.Th>
              <Table.Th ta="right">Exact</Table.Th>
              <Table.Th ta="right">Amount</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {invoice.lines.map((line) => (
              <Line key={line.no} line={line} currency={invoice.currency} />
            ))}
          </Table.Tbody>
          <Table.Tfoot>
            <Table.Tr>
              <Table.Th colSpan={3} ta="right">
                Total
              </Table.Th>
              <Table.Th ta="right" data-testid="invoice-total">
                {formatMoney(invoice.total, invoice.currency)}
              </Table.Th>
            </Table.Tr>
          </Table.Tfoot>
        </Table>
      </Scrollable>
    </Card>
  );
}

function Line({ line, currency }: { line: InvoiceLine; currency: string }) {
  const [, open] = useParam("line");
  return (
    <Table.Tr>
      <Table.Td>
        {leadsDown(line) ? (
          <Button
            variant="subtle"
            size="compact-sm"
            ml={-8}
            aria-label={`Show usage behind line ${line.no}: ${line.description}`}
            onClick={() => open(String(line.no))}
          >
            {line.description}
          </Button>
        ) : (
          <Text size="sm">{line.description}</Text>
        )}
        <Text size="xs" c="dimmed">
          {[line.month, line.price_version && `price list version ${line.price_version}`]
            .filter(Boolean)
            .join(" · ")}
        </Text>
      </Table.Td>
      <Table.Td>
        <Text size="sm" c="dimmed">
          {equation(line, currency)}
        </Text>
      </Table.Td>
      <Table.Td ta="right">{formatMoney(line.exact_amount, currency)}</Table.Td>
      <Table.Td ta="right">{formatMoney(line.amount, currency)}</Table.Td>
    </Table.Tr>
  );
}
