/** The page's body: filters, and what they find. */

import { Button, Group, Text } from "@mantine/core";
import { IconListSearch, IconRefresh } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { formatCount } from "../components/format";
import { useQueryParams } from "../components/searchParams";
import { EmptyState, ErrorState, TableSkeleton } from "../components/states";
import { queryOf } from "./model";
import { type Side, useNewest, useRequests } from "./queries";
import { RequestFilters } from "./RequestFilters";
import { RequestTable } from "./RequestTable";

interface RequestListProps {
  side: Side;
  tenant?: string;
  tenants?: ReadonlyMap<string, string>;
  addressOf: (id: string) => string;
}

export function RequestList({ side, tenant, tenants, addressOf }: RequestListProps) {
  const [params, setParams] = useQueryParams();
  // "The last hour" is the one before it was asked for: a list that moves by itself cannot be read.
  const [nowS, setNowS] = useState(() => Math.floor(Date.now() / 1000));
  const text = params.toString();
  const query = useMemo(() => queryOf(new URLSearchParams(text), nowS), [text, nowS]);
  const found = useRequests(side, query, tenant);
  const newest = useNewest(side, query, tenant);
  const pages = found.data?.pages;
  const requests = useMemo(() => pages?.flatMap((page) => page.data) ?? [], [pages]);
  const hasNewer = found.isSuccess && newest !== undefined && newest !== (requests[0]?.id ?? null);
  const show = () => {
    setNowS(Math.floor(Date.now() / 1000));
    void found.refetch();
  };
  return (
    <>
      <RequestFilters side={side} />
      <Group justify="space-between" mb="xs" mih={28}>
        <Text size="xs" c="dimmed" aria-live="polite">
          {found.data &&
            `${formatCount(requests.length)}${found.hasNextPage ? " and more" : ""} ${requests.length === 1 && !found.hasNextPage ? "request" : "requests"}`}
        </Text>
        {hasNewer && (
          <Button
            size="compact-xs"
            variant="light"
            leftSection={<IconRefresh size={14} />}
            onClick={show}
          >
            Show newest
          </Button>
        )}
      </Group>
      {found.isPending && <TableSkeleton rows={10} />}
      {found.error && !found.data && (
        <ErrorState error={found.error} onRetry={() => found.refetch()} />
      )}
      {found.hasNextPage && requests.length === 0 && (
        <EmptyState
          icon={<IconListSearch size={24} />}
          title="Nothing in the newest requests"
          action={
            <Button
              variant="light"
              loading={found.isFetchingNextPage}
              onClick={() => void found.fetchNextPage()}
            >
              Search further back
            </Button>
          }
        >
          What these filters match is rare. The search goes on where it stopped.
        </EmptyState>
      )}
      {found.data && !found.hasNextPage && requests.length === 0 && (
        <EmptyState
          icon={<IconListSearch size={24} />}
          title={text === "" ? "No requests yet" : "No requests match these filters"}
        >
          {text === ""
            ? "Finished requests appear here. Send one with the API or in the playground."
            : "Clear a filter or choose a longer period. Requests appear here when they have finished."}
        </EmptyState>
      )}
      {requests.length > 0 && (
        <RequestTable
          requests={requests}
          addressOf={addressOf}
          tenants={tenants}
          sort={query.sort ?? "newest"}
          onSort={(sort) =>
            setParams((before) => {
              if (sort === "newest") before.delete("sort");
              else before.set("sort", sort);
              return before;
            })
          }
          hasMore={found.hasNextPage}
          isLoadingMore={found.isFetchingNextPage}
          onMore={() => void found.fetchNextPage()}
        />
      )}
    </>
  );
}
