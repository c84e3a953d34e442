/** Calls that were answered with an error: searched, listed, and one of them beside the list. */

import { Anchor, Badge, Button, Code, Group, Select, Stack, Text } from "@mantine/core";
import { IconMoodSmile, IconX } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { Copyable } from "../components/Copyable";
import { type Column, DataTable } from "../components/DataTable";
import { counted, formatCount, formatDate, formatMoment } from "../components/format";
import { SearchField } from "../components/SearchField";
import { SidePanel, useParam } from "../components/SidePanel";
import { useQueryParams } from "../components/searchParams";
import { EmptyState, ErrorState, TableSkeleton } from "../components/states";
import { TenantName } from "../components/TenantName";
import { queryOf, type RejectedCall, STATUSES, togetherOf } from "./model";
import { type Side, useRejectedCalls } from "./queries";

const TIMES = { "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days" };
const FILTERS = ["q", "status", "code", "api_key", "range", "start", "end"];

export function RejectedList({ side, tenant }: { side: Side; tenant?: string }) {
  const [params] = useQueryParams();
  const [nowS] = useState(() => Math.floor(Date.now() / 1000));
  const text = params.toString();
  const query = useMemo(() => queryOf(new URLSearchParams(text), nowS), [text, nowS]);
  const found = useRejectedCalls(side, query, tenant);
  const [, open] = useParam("call");
  const columns = useMemo(() => columnsOf(side), [side]);
  return (
    <>
      <Filters params={params} />
      <Text size="xs" c="dimmed" mb="xs" mih={18} aria-live="polite">
        {found.first && saidOf(found.rows, found.more.hasMore)}
      </Text>
      {found.isPending && <TableSkeleton rows={8} />}
      {found.error && <ErrorState error={found.error} onRetry={found.refetch} />}
      {found.first && found.rows.length === 0 && (
        <EmptyState icon={<IconMoodSmile size={24} />} title="No rejected calls">
          {FILTERS.some((name) => params.has(name))
            ? "No calls match these filters. Remove a filter, or choose a longer period."
            : "Inference API calls that return an error appear here. There were none in the last days."}
        </EmptyState>
      )}
      {found.rows.length > 0 && (
        <DataTable
          label="Rejected calls"
          columns={columns}
          rows={found.rows}
          rowKey={({ id }) => id}
          onRow={({ id }) => open(id)}
          minWidth={side === "operator" ? 1080 : 940}
          maxHeight="calc(100dvh - 300px)"
          {...found.more}
        />
      )}
      <SidePanel param="call" title={() => <Text fw={600}>Rejected call</Text>}>
        {(id) => <Details call={found.rows.find((each) => each.id === id)} />}
      </SidePanel>
    </>
  );
}

function saidOf(rows: readonly RejectedCall[], hasMore: boolean): string {
  const calls = rows.reduce((sum, each) => sum + each.calls, 0);
  return hasMore ? `Newest ${counted(calls, "call")}` : counted(calls, "call");
}

function Filters({ params }: { params: URLSearchParams }) {
  const [, setParams] = useQueryParams();
  const change = (changes: Record<string, string | null>) =>
    setParams((before) => {
      for (const [name, value] of Object.entries(changes)) {
        if (value === null) before.delete(name);
        else before.set(name, value);
      }
      return before;
    });
  const status = params.get("status");
  const known = status === null || status in STATUSES ? {} : { [status]: status };
  const [start, end] = [Number(params.get("start")), Number(params.get("end"))];
  const isFixed = start > 0 && end > start;
  const spans = Object.entries(TIMES).map(([value, label]) => ({ value, label }));
  const fixed = { value: "fixed", label: `${formatDate(start)} to ${formatDate(end)}` };
  return (
    <Group gap="sm" mb="sm" align="flex-end" role="search" aria-label="Rejected calls">
      <SearchField
        label="Search rejected calls"
        placeholder="Message, field, model or request ID"
      />
      <Select
        aria-label="Status"
        w={180}
        placeholder="Any status"
        clearable
        data={Object.entries({ ...STATUSES, ...known }).map(([value, label]) => ({ value, label }))}
        value={status}
        onChange={(value) => change({ status: value })}
      />
      <Select
        aria-label="Time"
        w={isFixed ? 320 : 160}
        placeholder="Any time"
        clearable
        data={isFixed ? [fixed, ...spans] : spans}
        value={isFixed ? "fixed" : params.get("range")}
        onChange={(range) => range !== "fixed" && change({ range, start: null, end: null })}
      />
      {FILTERS.some((name) => params.has(name)) && (
        <Button
          variant="subtle"
          leftSection={<IconX size={14} />}
          onClick={() => change(Object.fromEntries(FILTERS.map((name) => [name, null])))}
        >
          Clear filters
        </Button>
      )}
    </Group>
  );
}

export function StatusCode({ status }: { status: number }) {
  return (
    <Badge color={status >= 500 ? "red" : status === 429 ? "yellow" : "orange"}>{status}</Badge>
  );
}

function columnsOf(side: Side): Column<RejectedCall>[] {
  const columns: Column<RejectedCall>[] = [
    { key: "at", header: "Time", width: 210, cell: (call) => <Opens call={call} /> },
    {
      key: "status",
      header: "Status",
      width: 80,
      cell: ({ status }) => <StatusCode {...{ status }} />,
    },
    {
      key: "message",
      header: "Message",
      cell: ({ message, code }) => <span title={message}>{message || code || "–"}</span>,
    },
    {
      key: "param",
      header: "Field",
      width: 150,
      cell: ({ param }) => (param === null ? "–" : <Code title={param}>{param}</Code>),
    },
    { key: "model", header: "Model", width: 140, cell: ({ model }) => model ?? "–" },
    { key: "key", header: "Key", width: 140, cell: keyOf },
    {
      key: "calls",
      header: "Calls",
      align: "right",
      width: 70,
      cell: ({ calls }) => formatCount(calls),
    },
  ];
  if (side === "operator")
    columns.splice(1, 0, {
      key: "tenant",
      header: "Tenant",
      width: 160,
      cell: ({ tenant_id, tenant_name }) =>
        tenant_id === null ? "no valid key" : <TenantName id={tenant_id} name={tenant_name} />,
    });
  return columns;
}

const keyOf = ({ api_key_id, api_key_name }: RejectedCall) =>
  api_key_id === null ? "–" : (api_key_name ?? "signed in");

function Opens({ call }: { call: RejectedCall }) {
  const [, open] = useParam("call");
  return (
    <Anchor component="button" type="button" size="sm" onClick={() => open(call.id)}>
      {formatMoment(call.at)}
    </Anchor>
  );
}

function Details({ call }: { call: RejectedCall | undefined }) {
  if (call === undefined)
    return (
      <Text size="sm">
        This call is no longer kept, or it does not match the filters. Clear the filters to look for
        it.
      </Text>
    );
  const together = togetherOf(call);
  return (
    <Stack gap="md">
      <Group gap="xs">
        <StatusCode status={call.status} />
        {call.code && <Code>{call.code}</Code>}
      </Group>
      <Text style={{ overflowWrap: "anywhere" }}>{call.message || "No message."}</Text>
      {together && (
        <Text size="sm">
          This entry stands for {together}. Identical calls within one minute are counted together;
          the message shown is from the first one.
        </Text>
      )}
      <Facts call={call} />
      <Text size="xs" c="dimmed">
        Prompts are not stored here. Text that a message quotes from a prompt is replaced by “…”.
      </Text>
    </Stack>
  );
}

function Facts({ call }: { call: RejectedCall }) {
  const facts: [string, string | null, boolean][] = [
    ["Time", formatMoment(call.at), false],
    ["Endpoint", call.route || null, false],
    ["Field", call.param, true],
    ["Model", call.model, true],
    ["Tenant", call.tenant_name ?? call.tenant_id, false],
    ["Key", call.api_key_id === null ? null : keyOf(call), false],
    ["Key ID", call.api_key_id, true],
    ["Request ID", call.request_id, true],
  ];
  return (
    <Stack gap={6} component="dl" m={0}>
      {facts.map(
        ([name, value, isCode]) =>
          value !== null && (
            <Group key={name} gap="sm" wrap="nowrap" align="baseline">
              <Text component="dt" size="sm" c="dimmed" w={110} flex="none">
                {name}
              </Text>
              <Text component="dd" size="sm" m={0} style={{ overflowWrap: "anywhere" }}>
                {isCode ? <Copyable value={value} label={name.toLowerCase()} /> : value}
              </Text>
            </Group>
          ),
      )}
    </Stack>
  );
}
