/** Plans: what each promises and allows, who is on it, and a change with what it does. */

import { Anchor, Badge, Button, Group, Stack } from "@mantine/core";
import { IconFileInvoice, IconPlus } from "@tabler/icons-react";
import { Link } from "react-router";
import { useIsRole } from "../../api/roles";
import { type Column, DataTable } from "../../components/DataTable";
import { counted, formatCount } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { SearchField } from "../../components/SearchField";
import { SidePanel, useParam } from "../../components/SidePanel";
import { useQueryParams } from "../../components/searchParams";
import { EmptyState, ErrorState, TableSkeleton } from "../../components/states";
import { shownIn } from "./currency";
import { fieldsOf, shown } from "./model";
import { PlanEditor } from "./PlanEditor";
import { PLAN_SORTS, type PlanListed, usePlans } from "./queries";

/** What the address calls a plan that is not there yet; no plan has a name with a +. */
const NEW = "+new";

export default function Page() {
  const [params, setParams] = useQueryParams();
  const [, open] = useParam("plan");
  const sort = PLAN_SORTS.find((each) => each === params.get("sort")) ?? "name";
  const plans = usePlans({ q: params.get("q") ?? undefined, sort });
  const mayChange = useIsRole("operator");
  return (
    <>
      <PageHeader
        title="Plans"
        description="Latency targets and limits by plan. A change applies to all tenants on the plan from their next request."
        action={
          mayChange && (
            <Button leftSection={<IconPlus size={16} />} onClick={() => open(NEW)}>
              Create plan
            </Button>
          )
        }
      />
      <Stack gap="sm">
        <SearchField label="Search plans" placeholder="Name" />
        {plans.isPending && <TableSkeleton />}
        {plans.error && <ErrorState error={plans.error} onRetry={plans.refetch} />}
        {plans.first && plans.rows.length === 0 && (
          <EmptyState icon={<IconFileInvoice size={24} />} title="No plans match">
            Enter part of a plan's name.
          </EmptyState>
        )}
        {plans.rows.length > 0 && (
          <PlanTable
            plans={plans.rows}
            sort={sort}
            onSort={(next) =>
              setParams((before) => {
                before.set("sort", next);
                return before;
              })
            }
            onOpen={open}
            more={plans.more}
          />
        )}
      </Stack>
      <SidePanel param="plan" title={(name) => (name === NEW ? "Create plan" : `Plan ${name}`)}>
        {(name) => (
          <Opened
            key={name}
            name={name === NEW ? null : name}
            mayChange={mayChange}
            onClose={() => open(null)}
          />
        )}
      </SidePanel>
    </>
  );
}

interface OpenedProps {
  name: string | null;
  mayChange: boolean;
  onClose: () => void;
}

function Opened({ name, mayChange, onClose }: OpenedProps) {
  const plans = usePlans();
  const plan = plans.rows.find((each) => each.name === name);
  if (plans.isPending) return <TableSkeleton />;
  if (plans.error) return <ErrorState error={plans.error} onRetry={plans.refetch} />;
  if (name !== null && plan === undefined)
    return (
      <ErrorState
        error={new Error(`There is no plan named ${name}. It may have been deleted.`)}
        title="Not found"
      />
    );
  return <PlanEditor plan={plan ?? null} mayChange={mayChange} onDone={onClose} />;
}

interface PlanTableProps {
  plans: readonly PlanListed[];
  sort: string;
  onSort: (sort: string) => void;
  onOpen: (name: string) => void;
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

function PlanTable({ plans, onOpen, sort, onSort, more }: PlanTableProps) {
  const columns: Column<PlanListed>[] = [
    {
      key: "name",
      header: "Plan",
      sort: "name",
      cell: ({ name }) => (
        <Anchor component="button" size="sm" fw={550} onClick={() => onOpen(name)}>
          {name}
        </Anchor>
      ),
    },
    {
      key: "tenants",
      header: "Tenants",
      align: "right",
      sort: "-tenants",
      cell: (plan) => (
        <Group gap={6} justify="flex-end" wrap="nowrap">
          {plan.tenants_suspended > 0 && (
            <Badge color="yellow">{formatCount(plan.tenants_suspended)} suspended</Badge>
          )}
          <Anchor
            component={Link}
            size="sm"
            to={`/operator/tenants?plan=${encodeURIComponent(plan.name)}`}
            aria-label={`${counted(plan.tenants, "tenant")} on plan ${plan.name}`}
          >
            {formatCount(plan.tenants)}
          </Anchor>
        </Group>
      ),
    },
    {
      key: "class",
      header: "Class",
      cell: ({ sla_class, tiers }) =>
        tiers.length > 1
          ? `${sla_class} (also ${tiers.filter((tier) => tier !== sla_class).join(", ")})`
          : sla_class,
    },
    ...(["ttft_ms", "tpot_ms"] as const).map(
      (field): Column<PlanListed> => ({
        key: field,
        header: field === "ttft_ms" ? "TTFT, ms" : "TPOT, ms",
        align: "right",
        cell: (plan) => fieldsOf(plan)[field] || "–",
      }),
    ),
    { key: "weight", header: "Weight", align: "right", cell: ({ weight }) => weight },
    {
      key: "share",
      header: "Memory",
      align: "right",
      cell: (plan) => {
        const share = fieldsOf(plan).memory_share;
        return share === "" ? "–" : `${share}%`;
      },
    },
    {
      key: "requests",
      header: "Requests/min",
      align: "right",
      cell: (plan) => shown("requests_per_min", fieldsOf(plan).requests_per_min),
    },
    {
      key: "budget",
      header: "Monthly budget",
      align: "right",
      cell: (plan) => shownIn("budget", fieldsOf(plan).budget, plan.currencies),
    },
  ];
  return (
    <DataTable
      label="Plans"
      columns={columns}
      rows={plans}
      rowKey={({ name }) => name}
      sort={sort}
      onSort={onSort}
      minWidth={900}
      {...more}
    />
  );
}
