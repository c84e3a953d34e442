/** What the account pays: the price lists that hold for it now, which of them for what, and those to
 * come. */

import { Group, Stack, Table, Text } from "@mantine/core";
import { IconReceipt2 } from "@tabler/icons-react";
import { isZero } from "../../components/decimal";
import { formatDate, formatMoney } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { entriesOf, METER_NAMES, tierWords } from "../../operator/prices/model";
import { PriceBadge } from "../../operator/prices/PriceBadge";
import { announced, holding, nameOf, reason, type TenantPrice } from "./model";
import { usePrices } from "./queries";

export default function Page() {
  const found = usePrices();
  const prices = found.data?.data ?? [];
  return (
    <>
      <PageHeader
        title="Prices"
        description="The price lists that apply to you. Of those in force, the most specific one for a request's adapter and model is used."
      />
      {found.isPending && <TableSkeleton rows={8} />}
      {found.error && !found.data && (
        <ErrorState error={found.error} onRetry={() => found.refetch()} />
      )}
      {found.data && prices.length === 0 && (
        <EmptyState icon={<IconReceipt2 size={24} />} title="No prices yet">
          The operator of this server has set no prices. Nothing is charged until there are some.
        </EmptyState>
      )}
      <Stack>
        {holding(prices).map((each) => (
          <List
            key={each.price.id}
            title={nameOf(each.price)}
            price={each.price}
            why={reason(each)}
          />
        ))}
        {announced(prices).map((price) => (
          <List
            key={price.id}
            title={`${nameOf(price)}, from ${formatDate(price.effective_from)}`}
            price={price}
            why={`Scheduled: it applies from ${formatDate(price.effective_from)}.`}
          />
        ))}
      </Stack>
    </>
  );
}

interface ListProps {
  title: string;
  price: TenantPrice;
  why: string;
}

function List({ title, price, why }: ListProps) {
  return (
    <Panel
      title={title}
      note={`From ${formatDate(price.effective_from)}${
        price.effective_to ? ` until ${formatDate(price.effective_to)}` : ""
      }, in ${price.currency}`}
      action={<PriceBadge status={price.status} />}
    >
      <Text size="sm" mb="xs">
        {why}
      </Text>
      <Group gap="lg" mb="xs">
        <Term
          label="Monthly minimum"
          value={isZero(price.minimum) ? "none" : formatMoney(price.minimum, price.currency)}
        />
        <Term
          label="Included each month"
          value={isZero(price.included) ? "none" : formatMoney(price.included, price.currency)}
        />
      </Group>
      <Prices title={title} price={price} />
    </Panel>
  );
}

function Term({ label, value }: { label: string; value: string }) {
  return (
    <Text size="sm">
      <Text span c="dimmed" inherit>
        {label}:
      </Text>{" "}
      <Text span inherit className="numbers">
        {value}
      </Text>
    </Text>
  );
}

function Prices({ title, price }: Omit<ListProps, "why">) {
  const label = `Prices: ${title}`;
  return (
    <Scrollable label={label}>
      <Table aria-label={label} miw={520} verticalSpacing={6}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Usage</Table.Th>
            <Table.Th>Class</Table.Th>
            <Table.Th>In a month</Table.Th>
            <Table.Th ta="right">Price</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {entriesOf(price.per_million).map((entry) => (
            <Table.Tr key={`${entry.meter} ${entry.class_} ${entry.from}`}>
              <Table.Td>{METER_NAMES[entry.meter].label}</Table.Td>
              <Table.Td>{entry.class_ ?? "any"}</Table.Td>
              <Table.Td>{tierWords(entry.from)}</Table.Td>
              <Table.Td ta="right">
                {formatMoney(entry.price, price.currency)} / {METER_NAMES[entry.meter].unit}
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Scrollable>
  );
}
