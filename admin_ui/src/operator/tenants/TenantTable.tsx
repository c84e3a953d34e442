import { ActionIcon, Anchor, Badge, Menu, Text } from "@mantine/core";
import { IconDots, IconKey, IconList, IconPlayerPause, IconPlayerPlay } from "@tabler/icons-react";
import { Link, useNavigate } from "react-router";
import { Amounts } from "../../components/Amounts";
import { type Column, DataTable } from "../../components/DataTable";
import { formatCount, formatDate } from "../../components/format";
import { TenantDot } from "../../components/TenantName";
import type { TenantListed } from "./queries";
import { TenantStatus } from "./TenantStatus";

interface TenantTableProps {
  tenants: readonly TenantListed[];
  total: number | undefined;
  sort: string;
  onSort: (sort: string) => void;
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
  mayChange: boolean;
  onKey: (tenant: TenantListed) => void;
  onSuspend: (tenant: TenantListed) => void;
  onResume: (tenant: TenantListed) => void;
}

export function addressOf(id: string, tab?: string): string {
  return `/operator/tenants/${id}${tab ? `?tab=${tab}` : ""}`;
}

export function TenantTable({ tenants, total, sort, onSort, more, ...actions }: TenantTableProps) {
  const columns: Column<TenantListed>[] = [
    {
      key: "name",
      header: "Name",
      sort: "name",
      cell: (tenant) => (
        <>
          <TenantDot id={tenant.id} />{" "}
          <Anchor component={Link} to={addressOf(tenant.id)} size="sm" fw={550} title={tenant.name}>
            {tenant.name}
          </Anchor>
        </>
      ),
    },
    {
      key: "status",
      header: "Status",
      width: 110,
      cell: (tenant) => <TenantStatus tenant={tenant} />,
    },
    { key: "plan", header: "Plan", width: 120, cell: ({ plan }) => plan },
    {
      key: "spend",
      header: "Spend this month",
      align: "right",
      sort: "-spend",
      cell: (tenant) => (
        <>
          {tenant.unrated_events > 0 && (
            <Badge
              color="yellow"
              mr={8}
              title="Usage without a price is not included in the amount"
            >
              {formatCount(tenant.unrated_events)} unpriced
            </Badge>
          )}
          <Amounts of={tenant.spend_month} />
        </>
      ),
    },
    {
      key: "requests",
      header: "Requests today",
      align: "right",
      width: 140,
      sort: "-requests",
      cell: ({ requests_today }) => formatCount(requests_today),
    },
    {
      key: "created",
      header: "Created",
      width: 170,
      sort: "-created",
      cell: ({ created_at }) => formatDate(created_at),
    },
    {
      key: "actions",
      header: "Actions",
      width: 70,
      align: "right",
      cell: (tenant) => <TenantMenu tenant={tenant} {...actions} />,
    },
  ];
  return (
    <DataTable
      label="Tenants"
      columns={columns}
      rows={tenants}
      rowKey={({ id }) => id}
      total={total}
      sort={sort}
      onSort={onSort}
      minWidth={880}
      {...more}
    />
  );
}

type TenantMenuProps = Pick<TenantTableProps, "mayChange" | "onKey" | "onSuspend" | "onResume"> & {
  tenant: TenantListed;
};

function TenantMenu({ tenant, mayChange, onKey, onSuspend, onResume }: TenantMenuProps) {
  const navigate = useNavigate();
  return (
    <Menu position="bottom-end" withinPortal>
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" aria-label={`Actions for ${tenant.name}`}>
          <IconDots size={18} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>
          <Text span size="xs" ff="monospace">
            {tenant.id}
          </Text>
        </Menu.Label>
        <Menu.Item
          leftSection={<IconList size={16} />}
          onClick={() => navigate(addressOf(tenant.id, "keys"))}
        >
          Keys
        </Menu.Item>
        {mayChange && (
          <Menu.Item leftSection={<IconKey size={16} />} onClick={() => onKey(tenant)}>
            Create key
          </Menu.Item>
        )}
        {mayChange &&
          !tenant.deleted_at &&
          (tenant.status === "active" ? (
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
          ))}
      </Menu.Dropdown>
    </Menu>
  );
}
