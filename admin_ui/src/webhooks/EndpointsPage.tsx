/** The endpoints of a tenant or of the operator. */

import { Anchor, Badge, Button, Text } from "@mantine/core";
import { IconPlus, IconWebhook } from "@tabler/icons-react";
import { useState } from "react";
import { Link } from "react-router";
import { DataTable } from "../components/DataTable";
import { formatDate } from "../components/format";
import { type Once, OnceModal } from "../components/OnceModal";
import { PageHeader } from "../components/PageHeader";
import { SearchField } from "../components/SearchField";
import { useParam } from "../components/SidePanel";
import { EmptyState, ErrorState, TableSkeleton } from "../components/states";
import { EndpointForm } from "./EndpointForm";
import { bodyOf, NEW_ENDPOINT, type Side, typeWords } from "./model";
import { type NewEndpoint, useCreateEndpoint, useEndpoints } from "./queries";

interface EndpointsPageProps {
  side: Side;
  /** The address of this page; an endpoint's is below it. */
  base: string;
  description: string;
  mayChange: boolean;
}

export function EndpointsPage({ side, base, description, mayChange }: EndpointsPageProps) {
  const [asked] = useParam("q");
  const endpoints = useEndpoints(side, asked ?? undefined);
  const [isCreating, setCreating] = useState(false);
  const button = mayChange && (
    <Button leftSection={<IconPlus size={16} />} onClick={() => setCreating(true)}>
      Add endpoint
    </Button>
  );
  return (
    <>
      <PageHeader title="Webhooks" description={description} action={button} />
      {(asked !== null || endpoints.rows.length > 5) && (
        <div style={{ marginBottom: 12 }}>
          <SearchField label="Search endpoints" placeholder="URL or description" />
        </div>
      )}
      {endpoints.isPending && <TableSkeleton />}
      {endpoints.error && <ErrorState error={endpoints.error} onRetry={endpoints.refetch} />}
      {endpoints.first && endpoints.rows.length === 0 && (
        <EmptyState
          icon={<IconWebhook size={24} />}
          title={asked === null ? "No endpoints yet" : "No endpoints match"}
          action={asked === null && button}
        >
          Add an endpoint to send events about adapters, rollouts, budgets, API keys and invoices to
          your server.
        </EmptyState>
      )}
      {endpoints.rows.length > 0 && (
        <DataTable
          label="Endpoints"
          columns={[
            {
              key: "url",
              header: "Endpoint",
              cell: ({ id, url, description: about }) => (
                <>
                  <Anchor component={Link} to={`${base}/${id}`} size="sm" fw={550} truncate>
                    {url}
                  </Anchor>
                  {about && (
                    <Text size="xs" c="dimmed" truncate>
                      {about}
                    </Text>
                  )}
                </>
              ),
            },
            {
              key: "state",
              header: "Status",
              width: 120,
              cell: ({ enabled }) => (
                <Badge color={enabled ? "teal" : "gray"}>{enabled ? "enabled" : "disabled"}</Badge>
              ),
            },
            { key: "types", header: "Events", cell: ({ types }) => typeWords(types) },
            {
              key: "created",
              header: "Created",
              width: 160,
              cell: ({ created_at }) => formatDate(created_at),
            },
          ]}
          rows={endpoints.rows}
          rowKey={({ id }) => id}
          rowHeight={52}
          {...endpoints.more}
        />
      )}
      {isCreating && <CreateEndpoint side={side} onClose={() => setCreating(false)} />}
    </>
  );
}

export function secretOf(made: NewEndpoint | null): Once | null {
  return (
    made && {
      label: "Signing secret",
      value: made.secret,
      note: "Copy the secret now. It is shown only once. Use it on your server to verify the signatures of events.",
    }
  );
}

function CreateEndpoint({ side, onClose }: { side: Side; onClose: () => void }) {
  const [made, setMade] = useState<NewEndpoint | null>(null);
  const create = useCreateEndpoint(side, setMade);
  return (
    <OnceModal opened title="Add endpoint" once={secretOf(made)} onClose={onClose}>
      <EndpointForm
        start={NEW_ENDPOINT}
        submitLabel="Add endpoint"
        busy={create.isPending}
        error={create.error}
        onSubmit={(fields) => create.mutate(bodyOf(fields))}
        onCancel={onClose}
      />
    </OnceModal>
  );
}
