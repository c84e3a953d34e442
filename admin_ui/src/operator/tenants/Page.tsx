/** The operator's tenants: found, made, suspended and resumed; each opens its own page. */

import { Button, Group, NativeSelect, Stack } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconUserPlus, IconUsers } from "@tabler/icons-react";
import { useState } from "react";
import { useNavigate } from "react-router";
import { useIsRole } from "../../api/roles";
import { ConfirmModal } from "../../components/ConfirmModal";
import { currenciesOf } from "../../components/decimal";
import { counted } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { SearchField } from "../../components/SearchField";
import { useQueryParams } from "../../components/searchParams";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { CreateKeyModal } from "../../tenant/keys/KeyModals";
import { usePlanNames } from "../plans/queries";
import { Created } from "./Created";
import { CreateTenantModal } from "./CreateTenantModal";
import { filtersOf, STATUSES } from "./model";
import { type Tenant, useChangeTenant, useTenants } from "./queries";
import { TenantTable } from "./TenantTable";

export default function Page() {
  const [params, setParams] = useQueryParams();
  const navigate = useNavigate();
  const filters = filtersOf(params);
  const tenants = useTenants(filters);
  const mayChange = useIsRole("operator");
  const [creating, create] = useDisclosure();
  const [keyFor, setKeyFor] = useState<Tenant | null>(null);
  const [created, setCreated] = useState<Tenant | null>(null);
  const [suspending, setSuspending] = useState<Tenant | null>(null);
  const change = useChangeTenant(() => setSuspending(null));
  const set = (name: string, value: string | null) =>
    setParams((before) => {
      if (value) before.set(name, value);
      else before.delete(name);
      return before;
    });
  const isFiltered = Boolean(filters.q || filters.plan || filters.status);
  const total = tenants.first?.total;

  return (
    <>
      <PageHeader
        title="Tenants"
        description="Organizations that use this server, with their plan and their spend this month (UTC)."
        action={
          mayChange && (
            <Button leftSection={<IconUserPlus size={16} />} onClick={create.open}>
              Create tenant
            </Button>
          )
        }
      />
      <Stack gap="sm">
        {created && <Created tenant={created} onClose={() => setCreated(null)} />}
        <Group gap="sm">
          <SearchField label="Search tenants" placeholder="Name or ID" />
          <Filters
            plan={filters.plan}
            status={filters.status}
            currency={filters.currency}
            currencies={currenciesOf(...tenants.rows.map((row) => row.spend_month))}
            onSet={set}
          />
          {total !== undefined && (
            <Group ml="auto" fz="sm" c="dimmed" role="status">
              {counted(total, "tenant")}
            </Group>
          )}
        </Group>
        {tenants.isPending && <TableSkeleton rows={8} />}
        {tenants.error && <ErrorState error={tenants.error} onRetry={tenants.refetch} />}
        {change.error && suspending === null ? <ErrorState error={change.error} /> : null}
        {tenants.first && tenants.rows.length === 0 && (
          <EmptyState
            icon={<IconUsers size={24} />}
            title={isFiltered ? "No tenants match these filters" : "No tenants yet"}
            action={
              isFiltered ? (
                <Button variant="light" onClick={() => navigate("/operator/tenants")}>
                  Clear filters
                </Button>
              ) : (
                mayChange && (
                  <Button variant="light" onClick={create.open}>
                    Create first tenant
                  </Button>
                )
              )
            }
          >
            {isFiltered
              ? "Enter part of a name or ID, or clear the filters."
              : "A tenant has its own adapters, API keys and invoices. Create one, then create an API key for it."}
          </EmptyState>
        )}
        {tenants.rows.length > 0 && (
          <TenantTable
            tenants={tenants.rows}
            total={total}
            sort={filters.sort}
            onSort={(sort) => set("sort", sort)}
            more={tenants.more}
            mayChange={mayChange}
            onKey={setKeyFor}
            onSuspend={setSuspending}
            onResume={({ id }) => change.mutate({ id, status: "active" })}
          />
        )}
      </Stack>
      <CreateTenantModal
        opened={creating}
        onClose={create.close}
        onCreated={(tenant) => {
          setCreated(tenant);
          setKeyFor(tenant);
        }}
      />
      <CreateKeyModal
        owner={keyFor?.id ?? null}
        title={`Create key for ${keyFor?.name ?? ""}`}
        opened={keyFor !== null}
        onClose={() => setKeyFor(null)}
      />
      <ConfirmModal
        opened={suspending !== null}
        title={`Suspend ${suspending?.name ?? ""}?`}
        confirm="Suspend"
        busy={change.isPending}
        error={change.error}
        onConfirm={() => suspending && change.mutate({ id: suspending.id, status: "suspended" })}
        onClose={() => {
          change.reset();
          setSuspending(null);
        }}
      >
        Requests with its API keys get status 403 until you resume the tenant. Running requests are
        stopped and billed up to that point. Adapters and usage data are kept.
      </ConfirmModal>
    </>
  );
}

interface FiltersProps {
  plan: string | undefined;
  status: string | undefined;
  currency: string | undefined;
  /** Of what is listed. */
  currencies: readonly string[];
  onSet: (name: string, value: string | null) => void;
}

function Filters({ plan, status, currency, currencies, onSet }: FiltersProps) {
  const plans = usePlanNames();
  const known = plan && !plans.includes(plan) ? [plan, ...plans] : plans;
  const choices = [...new Set([currency ?? "USD", ...currencies])].sort();
  return (
    <>
      <NativeSelect
        aria-label="Status"
        value={status ?? ""}
        data={[{ value: "", label: "Any status" }, ...STATUSES]}
        onChange={(event) => onSet("status", event.currentTarget.value)}
      />
      <NativeSelect
        aria-label="Plan"
        value={plan ?? ""}
        data={[{ value: "", label: "Any plan" }, ...known]}
        onChange={(event) => onSet("plan", event.currentTarget.value)}
      />
      {choices.length > 1 && (
        <NativeSelect
          aria-label="Currency to sort spend by"
          value={currency ?? "USD"}
          data={choices}
          onChange={(event) => onSet("currency", event.currentTarget.value)}
        />
      )}
    </>
  );
}
