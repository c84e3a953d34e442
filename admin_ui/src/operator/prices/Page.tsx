/** Price lists: for whom each holds and from when on, and what it says. */

import { Anchor, Button, Group, NativeSelect, Stack } from "@mantine/core";
import { IconPlus, IconReceipt2 } from "@tabler/icons-react";
import { Link, useSearchParams } from "react-router";
import { useIsRole } from "../../api/roles";
import { type Column, DataTable } from "../../components/DataTable";
import { formatDate } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { SearchField } from "../../components/SearchField";
import { SidePanel, useParam } from "../../components/SidePanel";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { type Price, scopeWords, summary } from "./model";
import { PriceBadge, STATUS_NAMES } from "./PriceBadge";
import { PriceDetails } from "./PriceDetails";
import { PriceTimeline } from "./PriceTimeline";
import { type PriceFilters, STATUSES, usePrice, usePrices } from "./queries";

function filtersOf(params: URLSearchParams): PriceFilters {
  return {
    q: params.get("q") ?? undefined,
    plan: params.get("plan") ?? undefined,
    tenant: params.get("tenant") ?? undefined,
    status: STATUSES.find((each) => each === params.get("status")),
  };
}

export default function Page() {
  const [params] = useSearchParams();
  const [status, setStatus] = useParam("status");
  const [opened, open] = useParam("price");
  const filters = filtersOf(params);
  const isFiltered = Object.values(filters).some((each) => each !== undefined);
  const prices = usePrices(filters);
  const mayChange = useIsRole("billing");
  const add = (
    <Button component={Link} to="/operator/prices/new" leftSection={<IconPlus size={16} />}>
      Create price list
    </Button>
  );
  return (
    <>
      <PageHeader
        title="Prices"
        description="Each usage event is priced by the most specific list in force. To change prices, publish a new version; usage that has already been rated keeps its price."
        action={mayChange && add}
      />
      <Stack gap="sm">
        <Group gap="sm">
          <SearchField
            label="Search price lists"
            placeholder="Tenant, plan, model, adapter or ID"
          />
          <NativeSelect
            aria-label="Status"
            value={status ?? ""}
            data={[
              { value: "", label: "Any status" },
              ...STATUSES.map((value) => ({ value, label: STATUS_NAMES[value] })),
            ]}
            onChange={(event) => setStatus(event.currentTarget.value || null)}
          />
          {(filters.plan || filters.tenant) && (
            <Button component={Link} to="/operator/prices" variant="default" size="xs">
              {filters.plan ? `Plan ${filters.plan}` : "One tenant"}: show all
            </Button>
          )}
        </Group>
        {prices.isPending && <TableSkeleton rows={6} />}
        {prices.error && <ErrorState error={prices.error} onRetry={prices.refetch} />}
        {prices.first && prices.rows.length === 0 && (
          <EmptyState
            icon={<IconReceipt2 size={24} />}
            title={isFiltered ? "No price lists match these filters" : "No prices yet"}
            action={!isFiltered && mayChange && add}
          >
            {isFiltered
              ? "Enter part of a name or ID, or clear the filters."
              : "Create a price list to bill usage. Usage without a price is kept and is rated when a list covers it."}
          </EmptyState>
        )}
        {prices.rows.length > 0 && (
          <>
            <PriceTimeline prices={prices.rows} onOpen={open} />
            <PriceTable prices={prices.rows} onOpen={open} more={prices.more} />
          </>
        )}
      </Stack>
      <SidePanel param="price" title={() => "Price list"}>
        {(id) => <Opened key={id} id={id} onClose={() => open(null)} isOpen={opened !== null} />}
      </SidePanel>
    </>
  );
}

function Opened({ id, onClose, isOpen }: { id: string; onClose: () => void; isOpen: boolean }) {
  const { price, isPending, error, refetch } = usePrice(isOpen ? id : null);
  if (isPending) return <TableSkeleton />;
  if (error) return <ErrorState error={error} onRetry={refetch} />;
  if (price === null)
    return (
      <ErrorState
        title="Not found"
        error={new Error(`There is no price list ${id}. It may have been withdrawn.`)}
      />
    );
  return <PriceDetails price={price} onClose={onClose} />;
}

interface PriceTableProps {
  prices: readonly Price[];
  onOpen: (id: string) => void;
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

function PriceTable({ prices, onOpen, more }: PriceTableProps) {
  const columns: Column<Price>[] = [
    {
      key: "scope",
      header: "Applies to",
      width: 260,
      cell: (price) => (
        <Anchor
          component="button"
          size="sm"
          fw={550}
          maw="100%"
          truncate
          title={scopeWords(price)}
          aria-label={`${scopeWords(price)}, list ${price.no}`}
          onClick={() => onOpen(price.id)}
        >
          {scopeWords(price)}
        </Anchor>
      ),
    },
    { key: "no", header: "Version", align: "right", width: 80, cell: ({ no }) => no },
    {
      key: "status",
      header: "Status",
      width: 150,
      cell: (price) => <PriceBadge status={price.status} />,
    },
    {
      key: "from",
      header: "From",
      width: 170,
      cell: ({ effective_from }) => formatDate(effective_from),
    },
    {
      key: "to",
      header: "Until",
      width: 170,
      cell: ({ effective_to }) => (effective_to === null ? "–" : formatDate(effective_to)),
    },
    {
      key: "prices",
      header: "Prompt / cached / output, per million",
      align: "right",
      cell: summary,
    },
    { key: "currency", header: "Currency", width: 90, cell: ({ currency }) => currency },
  ];
  return (
    <DataTable
      label="Price lists"
      columns={columns}
      rows={prices}
      rowKey={({ id }) => id}
      minWidth={1020}
      maxHeight={560}
      {...more}
    />
  );
}
