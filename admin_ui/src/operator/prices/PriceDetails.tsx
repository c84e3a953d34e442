/** One price list: all its prices, and what can be done to it. */

import { Anchor, Button, Group, Stack, Table, Text, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { Link } from "react-router";
import { useIsRole } from "../../api/roles";
import { ConfirmModal } from "../../components/ConfirmModal";
import { Copyable } from "../../components/Copyable";
import { isDecimal, isZero } from "../../components/decimal";
import { formatDate, formatMoney } from "../../components/format";
import { Scrollable } from "../../components/Scrollable";
import { ErrorState } from "../../components/states";
import {
  entriesOf,
  METER_NAMES,
  type Meter,
  missingMeters,
  type Price,
  scopeWords,
  tierWords,
} from "./model";
import { PriceBadge } from "./PriceBadge";
import { useAddMissing, useWithdrawPrice } from "./queries";

interface PriceDetailsProps {
  price: Price;
  onClose: () => void;
}

export function PriceDetails({ price, onClose }: PriceDetailsProps) {
  const mayChange = useIsRole("billing");
  const [isWithdrawing, setWithdrawing] = useState(false);
  const withdraw = useWithdrawPrice(onClose);
  const missing = missingMeters(price);
  return (
    <Stack>
      <Group gap="sm">
        <Text fw={600}>{scopeWords(price)}</Text>
        <PriceBadge status={price.status} />
      </Group>
      <Text size="sm">
        List {price.no}, from {formatDate(price.effective_from)}
        {price.effective_to ? ` until ${formatDate(price.effective_to)}` : ""}, in {price.currency}.
        {!isZero(price.minimum) &&
          ` Monthly minimum: ${formatMoney(price.minimum, price.currency)}.`}
        {!isZero(price.included) &&
          ` Included usage per month: ${formatMoney(price.included, price.currency)}.`}
      </Text>
      <Copyable value={price.id} label="price list ID" />
      <PricesTable price={price} />
      {missing.length > 0 && <Missing price={price} missing={missing} mayChange={mayChange} />}
      {price.tenant && (
        <Anchor component={Link} to={`/operator/tenants/${price.tenant}`} size="sm">
          Open tenant
        </Anchor>
      )}
      {mayChange && (
        <Group>
          <Button component={Link} to={`/operator/prices/new?from=${price.id}`} variant="light">
            Create new version
          </Button>
          <Button variant="default" onClick={() => setWithdrawing(true)}>
            Withdraw
          </Button>
        </Group>
      )}
      <ConfirmModal
        opened={isWithdrawing}
        title="Withdraw this price list?"
        confirm="Withdraw"
        busy={withdraw.isPending}
        error={withdraw.error}
        onConfirm={() => withdraw.mutate(price.id)}
        onClose={() => {
          withdraw.reset();
          setWithdrawing(false);
        }}
      >
        Only a list that has not rated any usage can be withdrawn. The previous version stays in
        force.
      </ConfirmModal>
    </Stack>
  );
}

function PricesTable({ price }: { price: Price }) {
  return (
    <Scrollable label="Prices">
      <Table aria-label="Prices" miw={420}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Meter</Table.Th>
            <Table.Th>Class</Table.Th>
            <Table.Th>Tier</Table.Th>
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
                {formatMoney(entry.price, price.currency)}
                <Text size="xs" c="dimmed">
                  {METER_NAMES[entry.meter].unit}
                </Text>
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Scrollable>
  );
}

interface MissingProps {
  price: Price;
  missing: readonly Meter[];
  mayChange: boolean;
}

function Missing({ price, missing, mayChange }: MissingProps) {
  const [prices, setPrices] = useState<Partial<Record<Meter, string>>>({});
  const add = useAddMissing(() => setPrices({}));
  const given = Object.entries(prices).filter(([, value]) => value !== "");
  const isRight = given.length > 0 && given.every(([, value]) => isDecimal(value));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isRight) add.mutate({ id: price.id, prices: Object.fromEntries(given) });
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="xs" component="section" aria-label="Without a price">
        <Text fw={600} size="sm">
          Without a price
        </Text>
        <Text size="sm" c="dimmed">
          Usage of these meters is not billed until it has a price. A price that you add here rates
          the waiting usage immediately and cannot be changed.
        </Text>
        {missing.map((meter) => (
          <TextInput
            key={meter}
            label={METER_NAMES[meter].label}
            description={`${price.currency}, ${METER_NAMES[meter].unit}`}
            inputMode="decimal"
            readOnly={!mayChange}
            value={prices[meter] ?? ""}
            error={prices[meter] && !isDecimal(prices[meter]) && "Enter a number, for example 0.40"}
            onChange={(event) => {
              const value = event.currentTarget.value.trim();
              setPrices((before) => ({ ...before, [meter]: value }));
            }}
          />
        ))}
        {add.error && <ErrorState error={add.error} />}
        {mayChange && (
          <Group justify="flex-end">
            <Button type="submit" variant="light" disabled={!isRight} loading={add.isPending}>
              Add prices
            </Button>
          </Group>
        )}
      </Stack>
    </form>
  );
}
