/** What became of each event that an endpoint was to be told of. */

import { Badge, Button, Group, SegmentedControl, Text } from "@mantine/core";
import { IconMailbox, IconSend } from "@tabler/icons-react";
import { useState } from "react";
import { type Column, DataTable } from "../components/DataTable";
import { counted, formatDate } from "../components/format";
import { SearchField } from "../components/SearchField";
import { useParam } from "../components/SidePanel";
import { EmptyState, ErrorState, TableSkeleton } from "../components/states";
import { type Delivery, type Endpoint, isDeliveryState, outcome, type Side, STATES } from "./model";
import { useDeliveries, useResend, useResendDead } from "./queries";

interface DeliveriesProps {
  side: Side;
  endpoint: Endpoint;
  mayChange: boolean;
}

export function Deliveries({ side, endpoint, mayChange }: DeliveriesProps) {
  const [asked] = useParam("q");
  const [wanted, setWanted] = useParam("state");
  const state = isDeliveryState(wanted) ? wanted : undefined;
  const [order, setOrder] = useState<"asc" | "desc">("desc");
  const found = useDeliveries(side, endpoint.id, { q: asked ?? undefined, state, order });
  const resend = useResend(side, endpoint.id);
  const resendDead = useResendDead(side, endpoint.id);
  const failed = resend.error ?? resendDead.error;
  return (
    <>
      <Group mb="sm" gap="sm">
        <SearchField label="Search deliveries" placeholder="Event, ID or error" />
        <SegmentedControl
          size="xs"
          aria-label="Status"
          data={[
            { value: "", label: "All" },
            ...Object.entries(STATES).map(([value, { words }]) => ({ value, label: words })),
          ]}
          value={state ?? ""}
          onChange={(value) => setWanted(value || null)}
        />
        {mayChange && state === "dead" && found.rows.length > 0 && (
          <Button
            size="xs"
            variant="light"
            leftSection={<IconSend size={14} />}
            loading={resendDead.isPending}
            onClick={() => resendDead.mutate()}
          >
            Retry all failed deliveries
          </Button>
        )}
      </Group>
      {resendDead.data && (
        <Text size="sm" role="status" mb="sm">
          {counted(resendDead.data.resent, "is", "are")} queued for another attempt.
        </Text>
      )}
      {failed ? <ErrorState error={failed} /> : null}
      {found.isPending && <TableSkeleton />}
      {found.error && <ErrorState error={found.error} onRetry={found.refetch} />}
      {found.first && found.rows.length === 0 && (
        <EmptyState
          icon={<IconMailbox size={24} />}
          title={state === "dead" ? "No failed deliveries" : "No deliveries yet"}
        >
          {state === "dead"
            ? "Deliveries that an endpoint has not accepted within a day are listed here."
            : "Events since this endpoint was created appear here with their delivery status."}
        </EmptyState>
      )}
      {found.rows.length > 0 && (
        <DataTable
          label="Deliveries"
          columns={columnsOf(mayChange && endpoint.enabled, resend.variables, (id) =>
            resend.mutate(id),
          )}
          rows={found.rows}
          rowKey={({ id }) => id}
          sort={order === "asc" ? "created" : "-created"}
          onSort={(next) => setOrder(next === "created" ? "asc" : "desc")}
          rowHeight={52}
          minWidth={820}
          {...found.more}
        />
      )}
    </>
  );
}

function columnsOf(
  mayResend: boolean,
  sending: string | undefined,
  onResend: (id: string) => void,
): Column<Delivery>[] {
  const columns: Column<Delivery>[] = [
    {
      key: "type",
      header: "Event",
      cell: ({ type, event_id }) => (
        <>
          <Text size="sm" fw={550}>
            {type}
          </Text>
          <Text size="xs" ff="monospace" c="dimmed" truncate>
            {event_id}
          </Text>
        </>
      ),
    },
    {
      key: "state",
      header: "Status",
      width: 110,
      cell: ({ state }) => <Badge color={STATES[state].color}>{STATES[state].words}</Badge>,
    },
    {
      key: "outcome",
      header: "Last attempt",
      cell: (delivery) => (
        <>
          <Text size="sm" truncate title={outcome(delivery)}>
            {outcome(delivery)}
          </Text>
          <Text size="xs" c="dimmed" truncate>
            {delivery.attempts} tried
            {delivery.last_at && `, last ${formatDate(delivery.last_at)}`}
            {delivery.next_at && `, next ${formatDate(delivery.next_at)}`}
          </Text>
        </>
      ),
    },
    {
      key: "created",
      header: "Created",
      sort: "-created",
      width: 160,
      cell: ({ created_at }) => formatDate(created_at),
    },
  ];
  if (mayResend)
    columns.push({
      key: "actions",
      header: "Actions",
      width: 120,
      cell: ({ id, type, state }) => (
        <Button
          size="compact-sm"
          variant="default"
          disabled={state === "waiting"}
          aria-label={`Retry: ${type}`}
          data-sending={sending === id || undefined}
          onClick={() => onResend(id)}
        >
          Retry
        </Button>
      ),
    });
  return columns;
}
