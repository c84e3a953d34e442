/** A tenant's adapters: what there is, in which state, and the ways in and out. */

import {
  ActionIcon,
  Badge,
  Button,
  Card,
  Group,
  Menu,
  Table,
  Text,
  UnstyledButton,
} from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import { IconDots, IconMessages, IconStack2, IconTrash, IconUpload } from "@tabler/icons-react";
import { useState } from "react";
import { Link } from "react-router";
import { ConfirmModal } from "../../components/ConfirmModal";
import { Copyable } from "../../components/Copyable";
import { formatBytes, shortDigest } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { AdapterDrawer } from "./AdapterDrawer";
import { type Adapter, type DeleteTarget, useAdapters, useDelete } from "./queries";
import { StateBadge } from "./StateBadge";
import { UploadModal } from "./UploadModal";

export default function Page() {
  const adapters = useAdapters();
  const [uploading, upload] = useDisclosure();
  const [opened, setOpened] = useState<string | null>(null);
  const [doomed, setDoomed] = useState<DeleteTarget | null>(null);
  const shown = adapters.data?.find((adapter) => adapter.name === opened) ?? null;

  return (
    <>
      <PageHeader
        title="Adapters"
        description="LoRA adapters served from one base model. Call one by its name in the field model of a request."
        action={
          <Button leftSection={<IconUpload size={16} />} onClick={upload.open}>
            Upload
          </Button>
        }
      />
      {adapters.isPending && <TableSkeleton />}
      {adapters.error && !adapters.data && (
        <ErrorState error={adapters.error} onRetry={() => adapters.refetch()} />
      )}
      {adapters.data?.length === 0 && (
        <EmptyState
          icon={<IconStack2 size={24} />}
          title="No adapters yet"
          action={
            <Button variant="light" onClick={upload.open}>
              Upload the first one
            </Button>
          }
        >
          Train one with PEFT on the base model, then upload the folder it saves. Until then the
          base model answers in the playground.
        </EmptyState>
      )}
      {adapters.data && adapters.data.length > 0 && (
        <AdapterTable adapters={adapters.data} onOpen={setOpened} onDelete={setDoomed} />
      )}
      <UploadModal opened={uploading} onClose={upload.close} />
      <AdapterDrawer adapter={shown} onClose={() => setOpened(null)} onDelete={setDoomed} />
      <DeleteModal target={doomed} onClose={() => setDoomed(null)} />
    </>
  );
}

interface AdapterTableProps {
  adapters: Adapter[];
  onOpen: (name: string) => void;
  onDelete: (target: DeleteTarget) => void;
}

function AdapterTable({ adapters, onOpen, onDelete }: AdapterTableProps) {
  return (
    <Card p={0}>
      <Table.ScrollContainer minWidth={780} type="native">
        <Table highlightOnHover aria-label="Adapters">
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Name</Table.Th>
              <Table.Th>State</Table.Th>
              <Table.Th ta="right">Rank</Table.Th>
              <Table.Th>Modules</Table.Th>
              <Table.Th ta="right">Size</Table.Th>
              <Table.Th>Digest</Table.Th>
              <Table.Th w={56} aria-label="Actions" />
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {adapters.map((adapter) => (
              <AdapterRow
                key={adapter.id}
                adapter={adapter}
                onOpen={() => onOpen(adapter.name)}
                onDelete={() => onDelete({ name: adapter.name, version: null })}
              />
            ))}
          </Table.Tbody>
        </Table>
      </Table.ScrollContainer>
    </Card>
  );
}

interface AdapterRowProps {
  adapter: Adapter;
  onOpen: () => void;
  onDelete: () => void;
}

function AdapterRow({ adapter, onOpen, onDelete }: AdapterRowProps) {
  const { name, version, state, rank, digest } = adapter;
  return (
    <Table.Tr>
      <Table.Td>
        <UnstyledButton onClick={onOpen}>
          <Text fw={550} size="sm" c="var(--mantine-color-anchor)">
            {name}
          </Text>
          <Text size="xs" c="dimmed">
            version {version}
          </Text>
        </UnstyledButton>
      </Table.Td>
      <Table.Td>
        <StateBadge state={state} />
      </Table.Td>
      <Table.Td ta="right">{rank ?? "–"}</Table.Td>
      <Table.Td>
        <Modules names={adapter.target_modules} />
      </Table.Td>
      <Table.Td ta="right" style={{ whiteSpace: "nowrap" }}>
        {formatBytes(adapter.bytes)}
      </Table.Td>
      <Table.Td>
        {digest ? <Copyable value={digest} shown={shortDigest(digest)} label="digest" /> : "–"}
      </Table.Td>
      <Table.Td>
        <Menu position="bottom-end">
          <Menu.Target>
            <ActionIcon variant="subtle" color="gray" aria-label={`Actions for ${name}`}>
              <IconDots size={18} />
            </ActionIcon>
          </Menu.Target>
          <Menu.Dropdown>
            <Menu.Item
              component={Link}
              to={`/playground?left=${encodeURIComponent(name)}`}
              leftSection={<IconMessages size={16} />}
              disabled={state !== "active"}
            >
              Try in the playground
            </Menu.Item>
            <Menu.Item color="red" leftSection={<IconTrash size={16} />} onClick={onDelete}>
              Delete
            </Menu.Item>
          </Menu.Dropdown>
        </Menu>
      </Table.Td>
    </Table.Tr>
  );
}

const MODULES_SHOWN = 3;

function Modules({ names }: { names: string[] | null }) {
  if (!names || names.length === 0) return <>–</>;
  const rest = names.slice(MODULES_SHOWN);
  return (
    <Group gap={4} title={names.join(", ")}>
      {names.slice(0, MODULES_SHOWN).map((name) => (
        <Badge key={name} color="gray">
          {name}
        </Badge>
      ))}
      {rest.length > 0 && (
        <Text size="xs" c="dimmed">
          +{rest.length}
        </Text>
      )}
    </Group>
  );
}

function DeleteModal({ target, onClose }: { target: DeleteTarget | null; onClose: () => void }) {
  const remove = useDelete(() => {
    onClose();
    notifications.show({ color: "teal", message: "Deleted. Its memory is given back." });
  });
  const what = target?.version == null ? target?.name : `${target.name}@${target.version}`;
  return (
    <ConfirmModal
      opened={target !== null}
      title={`Delete ${what ?? ""}?`}
      confirm="Delete"
      busy={remove.isPending}
      error={remove.error}
      onConfirm={() => target && remove.mutate(target)}
      onClose={() => {
        remove.reset();
        onClose();
      }}
    >
      Requests in flight finish; new ones get 404. This cannot be undone.
    </ConfirmModal>
  );
}
