/** The audit log as a list that is searched by who, what, on what and when; an entry opens beside it. */

import { Anchor, Group, NativeSelect, Pill, Text, TextInput } from "@mantine/core";
import { IconHistory } from "@tabler/icons-react";
import { useState } from "react";
import { type Column, DataTable } from "../components/DataTable";
import { formatMoment } from "../components/format";
import { SearchField } from "../components/SearchField";
import { SidePanel, useParam } from "../components/SidePanel";
import { EmptyState, ErrorState, TableSkeleton } from "../components/states";
import { EntryView } from "./EntryView";
import { ACTION_GROUPS, actorOf, type Entry, type Side, timesOf } from "./model";
import { useEntries } from "./queries";

const OPERATORS_CHAIN = "operator";

export function AuditList({ side }: { side: Side }) {
  const [q] = useParam("q");
  const [action, setAction] = useParam("action");
  const [actor, setActor] = useParam("actor");
  const [target, setTarget] = useParam("target");
  const [tenant, setTenant] = useParam("tenant");
  const [from, setFrom] = useParam("from");
  const [until, setUntil] = useParam("until");
  const [, setEntry] = useParam("entry");
  const [order, setOrder] = useState<"asc" | "desc">("desc");
  const found = useEntries(side, {
    q: q ?? undefined,
    action: action ?? undefined,
    actor: actor ?? undefined,
    target: target ?? undefined,
    ...timesOf(from, until),
    ...(side === "operator" && tenant !== null
      ? tenant === OPERATORS_CHAIN
        ? { operator: true }
        : { tenant_id: tenant }
      : {}),
    order,
  });
  return (
    <>
      <Group mb="sm" gap="sm" align="flex-end">
        <SearchField label="Search the audit log" placeholder="Name, action or ID" />
        <NativeSelect
          aria-label="Action"
          value={action ?? ""}
          data={[
            { value: "", label: "All actions" },
            ...Object.entries(ACTION_GROUPS[side]).map(([value, label]) => ({ value, label })),
          ]}
          onChange={(event) => setAction(event.currentTarget.value || null)}
        />
        <Day label="From" value={from} onChange={setFrom} />
        <Day label="Until" value={until} onChange={setUntil} />
      </Group>
      <Group mb="sm" gap="xs">
        <Chosen name="actor" value={actor} onClear={() => setActor(null)} />
        <Chosen name="target" value={target} onClear={() => setTarget(null)} />
        <Chosen name="tenant" value={tenant} onClear={() => setTenant(null)} />
      </Group>
      {found.isPending && <TableSkeleton />}
      {found.error && <ErrorState error={found.error} onRetry={found.refetch} />}
      {found.first && found.rows.length === 0 && (
        <EmptyState icon={<IconHistory size={24} />} title="No entries match these filters">
          Clear a filter or choose a longer period.
        </EmptyState>
      )}
      {found.rows.length > 0 && (
        <DataTable
          label="Audit log"
          columns={columnsOf(side, { onActor: setActor, onTarget: setTarget, onTenant: setTenant })}
          rows={found.rows}
          rowKey={({ id }) => id}
          sort={order === "asc" ? "at" : "-at"}
          onSort={(next) => setOrder(next === "at" ? "asc" : "desc")}
          onRow={({ id }) => setEntry(id)}
          minWidth={side === "operator" ? 980 : 820}
          {...found.more}
        />
      )}
      <SidePanel param="entry" title={() => <Text fw={600}>Audit log entry</Text>}>
        {(id) => <EntryView side={side} id={id} />}
      </SidePanel>
    </>
  );
}

interface DayProps {
  label: string;
  value: string | null;
  onChange: (value: string | null) => void;
}

function Day({ label, value, onChange }: DayProps) {
  return (
    <TextInput
      type="date"
      aria-label={`${label} (UTC)`}
      title={`${label} (UTC)`}
      value={value ?? ""}
      onChange={(event) => onChange(event.currentTarget.value || null)}
    />
  );
}

interface ChosenProps {
  name: string;
  value: string | null;
  onClear: () => void;
}

function Chosen({ name, value, onClear }: ChosenProps) {
  if (value === null) return null;
  return (
    <Pill
      withRemoveButton
      onRemove={onClear}
      removeButtonProps={{
        "aria-label": `Remove filter: ${name} ${value}`,
        tabIndex: 0,
        "aria-hidden": false,
      }}
    >
      {name} {value}
    </Pill>
  );
}

interface Narrowing {
  onActor: (actor: string) => void;
  onTarget: (target: string) => void;
  onTenant: (tenant: string) => void;
}

function columnsOf(side: Side, { onActor, onTarget, onTenant }: Narrowing): Column<Entry>[] {
  const columns: Column<Entry>[] = [
    {
      key: "at",
      header: "Time",
      sort: "-at",
      width: 190,
      cell: ({ at }) => formatMoment(at),
    },
    {
      key: "actor",
      header: "Actor",
      cell: (entry) => <Narrow value={actorOf(entry)} onClick={() => onActor(entry.actor)} />,
    },
    { key: "action", header: "Action", width: 220, cell: (entry) => <Opens entry={entry} /> },
    {
      key: "target",
      header: "Target",
      cell: ({ target, target_name }) => (
        <Narrow value={target} name={target_name} onClick={() => onTarget(target)} isCode />
      ),
    },
    { key: "address", header: "IP address", width: 130, cell: ({ address }) => address ?? "–" },
  ];
  if (side === "operator")
    columns.splice(4, 0, {
      key: "tenant",
      header: "Tenant",
      cell: ({ tenant_id, tenant_name }) => (
        <Narrow
          value={tenant_id ?? OPERATORS_CHAIN}
          name={tenant_name}
          onClick={() => onTenant(tenant_id ?? OPERATORS_CHAIN)}
          isCode={tenant_id !== null}
        />
      ),
    });
  return columns;
}

function Opens({ entry }: { entry: Entry }) {
  const [, setEntry] = useParam("entry");
  return (
    <Anchor component="button" type="button" size="sm" fw={550} onClick={() => setEntry(entry.id)}>
      {entry.action}
    </Anchor>
  );
}

interface NarrowProps {
  value: string;
  /** Shown before the value. */
  name?: string | null;
  isCode?: boolean;
  onClick: () => void;
}

/** A cell that narrows the list down to what is like it. */
function Narrow({ value, name, isCode = false, onClick }: NarrowProps) {
  return (
    <Anchor
      component="button"
      type="button"
      size="sm"
      c="inherit"
      ff={isCode ? "monospace" : undefined}
      fz={isCode ? "xs" : "sm"}
      maw="100%"
      truncate
      title={`Filter by ${value}`}
      onClick={(event) => {
        event.stopPropagation();
        onClick();
      }}
    >
      {name && (
        <Text span size="sm" ff="text">
          {name}{" "}
        </Text>
      )}
      {value}
    </Anchor>
  );
}
