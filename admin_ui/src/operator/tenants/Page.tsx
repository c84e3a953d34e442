/** The operator's tenants: create, suspend, resume, and hand out keys. */

import { ActionIcon, Badge, Button, Card, Menu, Table, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import {
  IconDots,
  IconKey,
  IconList,
  IconPlayerPause,
  IconPlayerPlay,
  IconUserPlus,
  IconUsers,
} from "@tabler/icons-react";
import { useState } from "react";
import { describe } from "../../api/errors";
import { ConfirmModal } from "../../components/ConfirmModal";
import { Copyable } from "../../components/Copyable";
import { formatDate } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { CreateKeyModal } from "../../tenant/keys/KeyModals";
import { CreateTenantModal } from "./CreateTenantModal";
import { type Tenant, useSetStatus, useTenants } from "./queries";
import { TenantKeysModal } from "./TenantKeysModal";

export default function Page() {
  const tenants = useTenants();
  const [creating, create] = useDisclosure();
  const [keyFor, setKeyFor] = useState<Tenant | null>(null);
  const [keysOf, setKeysOf] = useState<Tenant | null>(null);
  const [suspending, setSuspending] = useState<Tenant | null>(null);
  const status = useSetStatus();

  function resume(tenant: Tenant) {
    status.mutate(
      { id: tenant.id, status: "active" },
      { onError: (error) => notifications.show({ color: "red", message: describe(error) }) },
    );
  }

  function suspend() {
    if (suspending === null) return;
    status.mutate(
      { id: suspending.id, status: "suspended" },
      { onSuccess: () => setSuspending(null) },
    );
  }

  return (
    <>
      <PageHeader
        title="Tenants"
        description="Who may use this server, on which plan. A suspended tenant's keys answer 403 until it is resumed."
        action={
          <Button leftSection={<IconUserPlus size={16} />} onClick={create.open}>
            New tenant
          </Button>
        }
      />
      {tenants.isPending && <TableSkeleton />}
      {tenants.error && !tenants.data && (
        <ErrorState error={tenants.error} onRetry={() => tenants.refetch()} />
      )}
      {tenants.data?.length === 0 && (
        <EmptyState
          icon={<IconUsers size={24} />}
          title="No tenants yet"
          action={
            <Button variant="light" onClick={create.open}>
              Create the first one
            </Button>
          }
        >
          A tenant owns adapters, keys and a bill. Create one, then give its people a key.
        </EmptyState>
      )}
      {tenants.data && tenants.data.length > 0 && (
        <TenantTable
          tenants={tenants.data}
          onKey={setKeyFor}
          onKeys={setKeysOf}
          onSuspend={setSuspending}
          onResume={resume}
        />
      )}
      <CreateTenantModal opened={creating} onClose={create.close} onCreated={setKeyFor} />
      <CreateKeyModal
        owner={keyFor?.id ?? null}
        title={`A key for ${keyFor?.name ?? ""}`}
        opened={keyFor !== null}
        onClose={() => setKeyFor(null)}
      />
      <TenantKeysModal tenant={keysOf} onClose={() => setKeysOf(null)} />
      <ConfirmModal
        opened={suspending !== null}
        title={`Suspend ${suspending?.name ?? ""}?`}
        confirm="Suspend"
        busy={status.isPending}
        error={status.error}
        onConfirm={suspend}
        onClose={() => {
          status.reset();
          setSuspending(null);
        }}
      >
        All its keys answer 403 until you resume it. Its adapters and its usage stay.
      </ConfirmModal>
    </>
  );
}

interface TenantTableProps {
  tenants: Tenant[];
  onKey: (tenant: Tenant) => void;
  onKeys: (tenant: Tenant) => void;
  onSuspend: (tenant: Tenant) => void;
  onResume: (tenant: Tenant) => void;
}

function TenantTable({ tenants, ...actions }: TenantTableProps) {
  return (
    <Card p={0}>
      <Table.ScrollContainer minWidth={680} type="native">
        <Table highlightOnHover aria-label="Tenants">
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Name</Table.Th>
              <Table.Th>Status</Table.Th>
              <Table.Th>Plan</Table.Th>
              <Table.Th>Id</Table.Th>
              <Table.Th>Created</Table.Th>
              <Table.Th w={56} aria-label="Actions" />
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {tenants.map((tenant) => (
              <Table.Tr key={tenant.id}>
                <Table.Td>
                  <Text size="sm" fw={550}>
                    {tenant.name}
                  </Text>
                </Table.Td>
                <Table.Td>
                  <Badge color={tenant.status === "active" ? "teal" : "yellow"}>
                    {tenant.status}
                  </Badge>
                </Table.Td>
                <Table.Td>{tenant.plan}</Table.Td>
                <Table.Td>
                  <Copyable value={tenant.id} label="tenant id" />
                </Table.Td>
                <Table.Td style={{ whiteSpace: "nowrap" }}>
                  {formatDate(tenant.created_at)}
                </Table.Td>
                <Table.Td>
                  <TenantMenu tenant={tenant} {...actions} />
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Table.ScrollContainer>
    </Card>
  );
}

interface TenantMenuProps extends Omit<TenantTableProps, "tenants"> {
  tenant: Tenant;
}

function TenantMenu({ tenant, onKey, onKeys, onSuspend, onResume }: TenantMenuProps) {
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" aria-label={`Actions for ${tenant.name}`}>
          <IconDots size={18} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item leftSection={<IconList size={16} />} onClick={() => onKeys(tenant)}>
          Keys
        </Menu.Item>
        <Menu.Item leftSection={<IconKey size={16} />} onClick={() => onKey(tenant)}>
          Create a key
        </Menu.Item>
        {tenant.status === "active" ? (
          <Menu.Item
            color="red"
            leftSection={<IconPlayerPause size={16} />}
            onClick={() => onSuspend(tenant)}
          >
            Suspend
          </Menu.Item>
        ) : (
          <Menu.Item leftSection={<IconPlayerPlay size={16} />} onClick={() => onResume(tenant)}>
            Resume
          </Menu.Item>
        )}
      </Menu.Dropdown>
    </Menu>
  );
}
