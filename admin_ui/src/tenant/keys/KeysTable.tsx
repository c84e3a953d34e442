/** The keys of one tenant, what each may do, and what can be done to it. */

import { ActionIcon, Badge, Card, Menu, Stack, Table, Text } from "@mantine/core";
import { IconDots, IconKey, IconPencil, IconRefresh, IconTrash } from "@tabler/icons-react";
import { type ReactNode, useState } from "react";
import { formatDate } from "../../components/format";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { ChangeKeyModal, RevokeKeyModal, RotateKeyModal } from "./KeyModals";
import { type Owner, useKeys } from "./queries";
import { type ApiKey, type KeyState, limitWords, stateOf } from "./terms";

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
}

export function KeysTable({ owner, createAction }: KeysTableProps) {
  const keys = useKeys(owner);
  const [chosen, setChosen] = useState<{ apiKey: ApiKey; action: Action } | null>(null);
  const close = () => setChosen(null);
  if (keys.isPending) return <TableSkeleton />;
  if (keys.error && !keys.data)
    return <ErrorState error={keys.error} onRetry={() => keys.refetch()} />;
  if (keys.data.length === 0)
    return (
      <EmptyState icon={<IconKey size={24} />} title="No keys yet" action={createAction}>
        A key opens the API for a program or a person, as far as its scopes and limits go.
      </EmptyState>
    );
  const dialog = chosen && { owner, apiKey: chosen.apiKey, onClose: close };
  return (
    <>
      <Card p={0}>
        <Table.ScrollContainer minWidth={760} type="native">
          <Table highlightOnHover aria-label="Keys">
            <Table.Thead>
              <Table.Tr>
                <Table.Th>Name</Table.Th>
                <Table.Th>State</Table.Th>
                <Table.Th>May</Table.Th>
                <Table.Th>Limits</Table.Th>
                <Table.Th>Last used</Table.Th>
                <Table.Th w={56} aria-label="Actions" />
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {keys.data.map((apiKey) => (
                <KeyRow
                  key={apiKey.id}
                  apiKey={apiKey}
                  onAction={(action) => setChosen({ apiKey, action })}
                />
              ))}
            </Table.Tbody>
          </Table>
        </Table.ScrollContainer>
      </Card>
      {dialog && chosen?.action === "change" && <ChangeKeyModal {...dialog} />}
      {dialog && chosen?.action === "rotate" && <RotateKeyModal {...dialog} />}
      {dialog && chosen?.action === "revoke" && <RevokeKeyModal {...dialog} />}
    </>
  );
}

interface KeyRowProps {
  apiKey: ApiKey;
  onAction: (action: Action) => void;
}

function KeyRow({ apiKey, onAction }: KeyRowProps) {
  const state = stateOf(apiKey);
  return (
    <Table.Tr>
      <Table.Td>
        <Text size="sm" fw={550}>
          {apiKey.name}
        </Text>
        <Text size="xs" ff="monospace">
          tn_{apiKey.prefix}…
        </Text>
      </Table.Td>
      <Table.Td>
        <Badge color={COLORS[state]}>{state}</Badge>
        <StateNote apiKey={apiKey} state={state} />
      </Table.Td>
      <Table.Td>
        <Text size="sm">{apiKey.scopes.join(", ")}</Text>
        <Text size="xs">{apiKey.models === null ? "every model" : apiKey.models.join(", ")}</Text>
      </Table.Td>
      <Table.Td>
        <Stack gap={0}>
          {limitWords(apiKey.limits).map((words) => (
            <Text key={words} size="sm">
              {words}
            </Text>
          ))}
        </Stack>
      </Table.Td>
      <Table.Td style={{ whiteSpace: "nowrap" }}>
        {apiKey.last_used_at === null ? "never" : formatDate(apiKey.last_used_at)}
      </Table.Td>
      <Table.Td>
        {state !== "revoked" && <KeyMenu apiKey={apiKey} state={state} onAction={onAction} />}
      </Table.Td>
    </Table.Tr>
  );
}

function StateNote({ apiKey, state }: { apiKey: ApiKey; state: KeyState }) {
  if (state === "rotating" && apiKey.previous)
    return <Text size="xs">old secret until {formatDate(apiKey.previous.expires_at)}</Text>;
  if (state === "active" && apiKey.expires_at !== null)
    return <Text size="xs">until {formatDate(apiKey.expires_at)}</Text>;
  return null;
}

function KeyMenu({ apiKey, state, onAction }: KeyRowProps & { state: KeyState }) {
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" aria-label={`Actions for ${apiKey.name}`}>
          <IconDots size={18} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item leftSection={<IconPencil size={16} />} onClick={() => onAction("change")}>
          Change
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
