/** One tenant, for the operator: what it spends, may, has and owes. */

import { Badge, Button, Group, Menu, Tabs } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconChevronDown, IconPlus } from "@tabler/icons-react";
import { useState } from "react";
import { useParams } from "react-router";
import { useIsRole } from "../../api/roles";
import { ConfirmModal } from "../../components/ConfirmModal";
import { Copyable } from "../../components/Copyable";
import { PageHeader } from "../../components/PageHeader";
import { useParam } from "../../components/SidePanel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { TenantDot } from "../../components/TenantName";
import { CreateKeyModal } from "../../tenant/keys/KeyModals";
import { KeysTable } from "../../tenant/keys/KeysTable";
import { InvoiceList } from "../billing/InvoiceList";
import { type Tenant, useChangeTenant } from "../tenants/queries";
import { TenantStatus } from "../tenants/TenantStatus";
import { CreditAndLedger } from "./CreditAndLedger";
import { DeleteTenantModal, DeletionBanner } from "./Deletion";
import { EditTenantModal } from "./EditTenantModal";
import { TABS, type Tab, tabOf } from "./model";
import { Overview } from "./Overview";
import { PeopleTab } from "./PeopleTab";
import { ProfileForm } from "./ProfileForm";
import { useTenant } from "./queries";
import { SettingsTab } from "./SettingsTab";
import { UsageTab } from "./UsageTab";

const BACK = { to: "/operator/tenants", label: "Tenants" };

export default function Page() {
  const { tenant: id = "" } = useParams();
  const found = useTenant(id);
  if (found.data) return <Shown tenant={found.data} />;
  return (
    <>
      <PageHeader title="Tenant" back={BACK} />
      {found.error ? (
        <ErrorState error={found.error} onRetry={() => found.refetch()} />
      ) : (
        <TableSkeleton rows={8} />
      )}
    </>
  );
}

function Shown({ tenant }: { tenant: Tenant }) {
  const [chosen, choose] = useParam("tab");
  const tab = tabOf(chosen);
  const isReader = useIsRole("operator", "read_only");
  const mayChange = useIsRole("operator");
  const tabs = (Object.entries(TABS) as [Tab, string][]).filter(
    ([name]) => isReader || (name !== "keys" && name !== "people"),
  );
  return (
    <>
      <PageHeader
        title={tenant.name}
        back={BACK}
        beside={
          <Group gap={6}>
            <TenantDot id={tenant.id} />
            <TenantStatus tenant={tenant} />
            <Badge color="gray">{tenant.plan}</Badge>
            {tenant.prepaid && <Badge color="blue">prepaid</Badge>}
          </Group>
        }
        description={<Copyable value={tenant.id} label="tenant ID" />}
        action={mayChange && !tenant.deleted_at && <Actions tenant={tenant} />}
      />
      <DeletionBanner tenant={tenant} />
      <Tabs
        value={tab}
        onChange={(next) => choose(next === "overview" ? null : next)}
        keepMounted={false}
      >
        <Tabs.List mb="md" aria-label="Tenant sections">
          {tabs.map(([name, label]) => (
            <Tabs.Tab key={name} value={name}>
              {label}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        <Tabs.Panel value="overview">
          <Overview tenant={tenant} />
        </Tabs.Panel>
        <Tabs.Panel value="usage">
          <UsageTab tenant={tenant.id} />
        </Tabs.Panel>
        <Tabs.Panel value="keys">
          <Keys tenant={tenant} mayChange={mayChange} />
        </Tabs.Panel>
        <Tabs.Panel value="people">
          <PeopleTab tenant={tenant} mayChange={mayChange} />
        </Tabs.Panel>
        <Tabs.Panel value="credit">
          <CreditAndLedger tenant={tenant} />
        </Tabs.Panel>
        <Tabs.Panel value="invoices">
          <InvoiceList tenant={tenant.id} />
        </Tabs.Panel>
        <Tabs.Panel value="billing">
          <ProfileForm tenant={tenant.id} />
        </Tabs.Panel>
        <Tabs.Panel value="settings">
          <SettingsTab tenant={tenant.id} />
        </Tabs.Panel>
      </Tabs>
    </>
  );
}

function Actions({ tenant }: { tenant: Tenant }) {
  const [isAsked, ask] = useDisclosure();
  const [isEditing, edit] = useDisclosure();
  const [isDeleting, remove] = useDisclosure();
  const change = useChangeTenant(ask.close);
  const isActive = tenant.status === "active";
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <Button
            variant="default"
            rightSection={<IconChevronDown size={15} />}
            loading={change.isPending}
          >
            Edit
          </Button>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item onClick={edit.open}>Edit name, plan and credit</Menu.Item>
          {isActive ? (
            <Menu.Item color="red" onClick={ask.open}>
              Suspend
            </Menu.Item>
          ) : (
            <Menu.Item onClick={() => change.mutate({ id: tenant.id, status: "active" })}>
              Resume
            </Menu.Item>
          )}
          <Menu.Item color="red" onClick={remove.open}>
            Delete
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      <EditTenantModal tenant={tenant} opened={isEditing} onClose={edit.close} />
      <DeleteTenantModal tenant={tenant} opened={isDeleting} onClose={remove.close} />
      <ConfirmModal
        opened={isAsked}
        title={`Suspend ${tenant.name}?`}
        confirm="Suspend"
        busy={change.isPending}
        error={change.error}
        onConfirm={() => change.mutate({ id: tenant.id, status: "suspended" })}
        onClose={() => {
          change.reset();
          ask.close();
        }}
      >
        Requests with its API keys get status 403 until you resume the tenant. Running requests are
        stopped and billed up to that point.
      </ConfirmModal>
    </>
  );
}

function Keys({ tenant, mayChange }: { tenant: Tenant; mayChange: boolean }) {
  const [isCreating, setCreating] = useState(false);
  const create = mayChange && (
    <Button leftSection={<IconPlus size={16} />} size="xs" onClick={() => setCreating(true)}>
      Create key
    </Button>
  );
  return (
    <>
      <Group justify="flex-end" mb="sm">
        {create}
      </Group>
      <KeysTable owner={tenant.id} />
      <CreateKeyModal
        owner={tenant.id}
        title={`Create key for ${tenant.name}`}
        opened={isCreating}
        onClose={() => setCreating(false)}
      />
    </>
  );
}
