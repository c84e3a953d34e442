/** The operator's keys, by role. */

import { Badge, Button, Group, Text } from "@mantine/core";
import { IconPlus } from "@tabler/icons-react";
import { useState } from "react";
import { type Column, DataTable } from "../../components/DataTable";
import { formatDate } from "../../components/format";
import { Panel } from "../../components/Panel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { makerOf } from "../../tenant/keys/model";
import { CreateAdminKey, RevokeAdminKey, RotateAdminKey } from "./KeyDialogs";
import { type AdminKey, STATE_COLORS, stateOf } from "./model";
import { useAdminKeys } from "./queries";

type Chosen = { adminKey: AdminKey; action: "rotate" | "revoke" } | "new" | null;

export function AdminKeys({ mayChange }: { mayChange: boolean }) {
  const keys = useAdminKeys();
  const [chosen, setChosen] = useState<Chosen>(null);
  const close = () => setChosen(null);
  return (
    <Panel
      title="Admin keys"
      note="For programs, and for people if no sign-in provider is configured."
      padding="0"
      action={
        mayChange && (
          <Button size="xs" leftSection={<IconPlus size={14} />} onClick={() => setChosen("new")}>
            Create admin key
          </Button>
        )
      }
    >
      {keys.isPending && <TableSkeleton />}
      {keys.error && <ErrorState error={keys.error} onRetry={keys.refetch} />}
      {keys.rows.length > 0 && (
        <DataTable
          label="Admin keys"
          columns={columnsOf(mayChange, (adminKey, action) => setChosen({ adminKey, action }))}
          rows={keys.rows}
          rowKey={({ id }) => id}
          rowHeight={52}
          minWidth={820}
          maxHeight={460}
          {...keys.more}
        />
      )}
      {chosen === "new" && <CreateAdminKey onClose={close} />}
      {chosen !== null && chosen !== "new" && chosen.action === "rotate" && (
        <RotateAdminKey adminKey={chosen.adminKey} onClose={close} />
      )}
      {chosen !== null && chosen !== "new" && chosen.action === "revoke" && (
        <RevokeAdminKey adminKey={chosen.adminKey} onClose={close} />
      )}
    </Panel>
  );
}

function columnsOf(
  mayChange: boolean,
  onAction: (adminKey: AdminKey, action: "rotate" | "revoke") => void,
): Column<AdminKey>[] {
  return [
    {
      key: "name",
      header: "Name",
      cell: ({ name, prefix, id }) => (
        <>
          <Text size="sm" fw={550} truncate>
            {name}
          </Text>
          <Text size="xs" ff="monospace" c="dimmed">
            {prefix ? `tna_${prefix}…` : id}
          </Text>
        </>
      ),
    },
    { key: "role", header: "Role", width: 110, cell: ({ role }) => role },
    {
      key: "state",
      header: "Status",
      width: 190,
      cell: (adminKey) => <State adminKey={adminKey} />,
    },
    {
      key: "created",
      header: "Created by",
      width: 150,
      cell: ({ created_by }) => (
        <Text size="sm" truncate title={created_by ?? undefined}>
          {created_by ? makerOf(created_by) : "–"}
        </Text>
      ),
    },
    {
      key: "used",
      header: "Last used",
      width: 160,
      cell: ({ last_used_at, source }) =>
        last_used_at ? formatDate(last_used_at) : source === "configured" ? "–" : "never",
    },
    {
      key: "actions",
      header: "Actions",
      width: 180,
      cell: (adminKey) => {
        const state = stateOf(adminKey);
        if (!mayChange || state === "configured" || state === "revoked") return null;
        return (
          <Group gap={6} wrap="nowrap">
            {state !== "expired" && (
              <Button
                size="compact-sm"
                variant="default"
                aria-label={`Rotate ${adminKey.name}`}
                onClick={() => onAction(adminKey, "rotate")}
              >
                Rotate
              </Button>
            )}
            <Button
              size="compact-sm"
              variant="default"
              aria-label={`Revoke ${adminKey.name}`}
              onClick={() => onAction(adminKey, "revoke")}
            >
              Revoke
            </Button>
          </Group>
        );
      },
    },
  ];
}

function State({ adminKey }: { adminKey: AdminKey }) {
  const state = stateOf(adminKey);
  const note =
    state === "configured"
      ? "set in the server's configuration"
      : state === "rotating" && adminKey.previous
        ? `previous secret valid until ${formatDate(adminKey.previous.expires_at)}`
        : state === "active" && adminKey.expires_at
          ? `until ${formatDate(adminKey.expires_at)}`
          : null;
  return (
    <>
      <Badge color={STATE_COLORS[state]}>{state}</Badge>
      {note && (
        <Text size="xs" c="dimmed" truncate title={note}>
          {note}
        </Text>
      )}
    </>
  );
}
