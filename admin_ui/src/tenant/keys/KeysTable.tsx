/** The keys of one tenant, what each may do, and what can be done to it. */

import { ActionIcon, Badge, Group, Menu, SegmentedControl, Text } from "@mantine/core";
import { IconDots, IconKey, IconPencil, IconRefresh, IconTrash } from "@tabler/icons-react";
import { type ReactNode, useState } from "react";
import { type Column, DataTable } from "../../components/DataTable";
import { formatDate } from "../../components/format";
import { SearchField } from "../../components/SearchField";
import { useParam } from "../../components/SidePanel";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { ChangeKeyModal, RevokeKeyModal, RotateKeyModal } from "./KeyModals";
import { type ApiKey, type KeyState, limitWords, makerOf, stateOf } from "./model";
import { type KeySort, type Owner, useBudgetCurrency, useKeys } from "./queries";

const COLORS: Record<KeyState, string> = {
  active: "teal",
  rotating: "blue",
  expired: "yellow",
  revoked: "gray",
};

type Action = "change" | "rotate" | "revoke";

interface KeysTableProps {
  owner: Owner;
  createAction?: ReactNode;
  mayChange?: boolean;
}

export function KeysTable({ owner, createAction, mayChange = true }: KeysTableProps) {
  const [asked] = useParam("key");
  const [state, setState] = useParam("keys");
  const [sort, setSort] = useState<KeySort>("-created");
  const currency = useBudgetCurrency(owner);
  const filter = state === "active" || state === "ended" ? state : undefined;
  const keys = useKeys(owner, { q: asked ?? undefined, state: filter, sort });
  const [chosen, setChosen] = useState<{ apiKey: ApiKey; action: Action } | null>(null);
  const dialog = chosen && {
    owner,
    apiKey: chosen.apiKey,
    onClose: () => setChosen(null),
  };
  const isFiltered = asked !== null || filter !== undefined;
  return (
    <>
      <Group mb="sm" gap="sm">
        <SearchField label="Search keys" placeholder="Name, prefix or ID" param="key" />
        <SegmentedControl
          size="xs"
          aria-label="Status"
          data={[
            { value: "", label: "All" },
            { value: "active", label: "Active" },
            { value: "ended", label: "Ended" },
          ]}
          value={filter ?? ""}
          onChange={(value) => setState(value || null)}
        />
      </Group>
      {keys.isPending && <TableSkeleton />}
      {keys.error && <ErrorState error={keys.error} onRetry={keys.refetch} />}
      {keys.first && keys.rows.length === 0 && (
        <EmptyState
          icon={<IconKey size={24} />}
          title={isFiltered ? "No keys match these filters" : "No keys yet"}
          action={isFiltered ? undefined : createAction}
        >
          {isFiltered
            ? "Clear the search or select All."
            : "API keys give programs and people access to the API. Create one to send requests."}
        </EmptyState>
      )}
      {keys.rows.length > 0 && (
        <DataTable
          label="Keys"
          columns={columnsOf(mayChange, currency, (apiKey, action) =>
            setChosen({ apiKey, action }),
          )}
          rows={keys.rows}
          rowKey={({ id }) => id}
          sort={sort}
          onSort={(next) => setSort(next as KeySort)}
          rowHeight={54}
          minWidth={880}
          {...keys.more}
        />
      )}
      {dialog && chosen?.action === "change" && <ChangeKeyModal {...dialog} />}
      {dialog && chosen?.action === "rotate" && <RotateKeyModal {...dialog} />}
      {dialog && chosen?.action === "revoke" && <RevokeKeyModal {...dialog} />}
    </>
  );
}

function columnsOf(
  mayChange: boolean,
  currency: string | null,
  onAction: (apiKey: ApiKey, action: Action) => void,
): Column<ApiKey>[] {
  const columns: Column<ApiKey>[] = [
    {
      key: "name",
      header: "Name",
      sort: "name",
      cell: ({ name, prefix }) => (
        <>
          <Text size="sm" fw={550} truncate>
            {name}
          </Text>
          <Text size="xs" ff="monospace" c="dimmed">
            tn_{prefix}…
          </Text>
        </>
      ),
    },
    { key: "state", header: "Status", width: 190, cell: (apiKey) => <State apiKey={apiKey} /> },
    {
      key: "may",
      header: "Scopes",
      cell: ({ scopes, models }) => (
        <>
          <Text size="sm" truncate>
            {scopes.join(", ")}
          </Text>
          <Text size="xs" c="dimmed" truncate title={models?.join(", ")}>
            {models === null ? "all models" : models.join(", ")}
          </Text>
        </>
      ),
    },
    {
      key: "limits",
      header: "Limits",
      cell: (apiKey) => <Limits apiKey={apiKey} currency={currency} />,
    },
    {
      key: "last_used",
      header: "Last used",
      sort: "-last_used",
      width: 150,
      cell: ({ last_used_at }) => (last_used_at === null ? "never" : formatDate(last_used_at)),
    },
    {
      key: "created",
      header: "Created",
      sort: "-created",
      width: 150,
      cell: ({ created_at, created_by }) => (
        <>
          <Text size="sm">{formatDate(created_at)}</Text>
          {created_by && (
            <Text size="xs" c="dimmed" truncate title={created_by}>
              by {makerOf(created_by)}
            </Text>
          )}
        </>
      ),
    },
  ];
  if (mayChange)
    columns.push({
      key: "actions",
      header: "Actions",
      width: 72,
      align: "right",
      cell: (apiKey) => <KeyMenu apiKey={apiKey} onAction={(action) => onAction(apiKey, action)} />,
    });
  return columns;
}

function State({ apiKey }: { apiKey: ApiKey }) {
  const state = stateOf(apiKey);
  const note =
    state === "rotating" && apiKey.previous
      ? `previous secret valid until ${formatDate(apiKey.previous.expires_at)}`
      : state === "active" && apiKey.expires_at !== null
        ? `until ${formatDate(apiKey.expires_at)}`
        : null;
  return (
    <>
      <Badge color={COLORS[state]}>{state}</Badge>
      {note && (
        <Text size="xs" c="dimmed" truncate title={note}>
          {note}
        </Text>
      )}
    </>
  );
}

function Limits({ apiKey, currency }: { apiKey: ApiKey; currency: string | null }) {
  const words = limitWords(apiKey.limits, currency);
  if (words.length === 0) return <Text size="sm">plan limits</Text>;
  const [first, ...others] = words;
  return (
    <div title={words.join("\n")}>
      <Text size="sm" truncate>
        {first}
      </Text>
      {others.length > 0 && (
        <Text size="xs" c="dimmed" truncate>
          {others.join(", ")}
        </Text>
      )}
    </div>
  );
}

function KeyMenu({ apiKey, onAction }: { apiKey: ApiKey; onAction: (action: Action) => void }) {
  const state = stateOf(apiKey);
  if (state === "revoked") return null;
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" aria-label={`Actions for ${apiKey.name}`}>
          <IconDots size={18} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item leftSection={<IconPencil size={16} />} onClick={() => onAction("change")}>
          Edit
        </Menu.Item>
        {state !== "expired" && (
          <Menu.Item leftSection={<IconRefresh size={16} />} onClick={() => onAction("rotate")}>
            Rotate
          </Menu.Item>
        )}
        <Menu.Item
          color="red"
          leftSection={<IconTrash size={16} />}
          onClick={() => onAction("revoke")}
        >
          Revoke
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
