/** What is searched for, as the address has it. */

import { Autocomplete, Button, Group, NumberInput, Select, TextInput } from "@mantine/core";
import { IconSearch, IconX } from "@tabler/icons-react";
import { useEffect, useState } from "react";
import { formatDate } from "../components/format";
import { useQueryParams } from "../components/searchParams";
import { SPANS_S, STATUSES, spanOf } from "./model";
import { type Side, useAdapterNames } from "./queries";

const CLASSES = ["default", "priority", "flex", "batch"];
const SLOW = [
  { value: "min_queue_ms", label: "Queue" },
  { value: "min_ttft_ms", label: "TTFT" },
  { value: "min_duration_ms", label: "Total" },
];
const TIMES = {
  "1h": "Last hour",
  "24h": "Last 24 hours",
  "7d": "Last 7 days",
  "30d": "Last 30 days",
};
export const BASE_MODEL = "base model";
const OF_SEARCH = [
  ...["q", "status", "adapter", "class", "api_key", "kind", "finish_reason"],
  ...["min_queue_ms", "min_ttft_ms", "min_duration_ms", "min_cost", "max_cost"],
  ...["range", "start", "end"],
];

/** One value of the address, and how it is changed; null takes it away. */
function useFilter(): [URLSearchParams, (changes: Record<string, string | null>) => void] {
  const [params, setParams] = useQueryParams();
  const change = (changes: Record<string, string | null>) =>
    setParams((before) => {
      for (const [name, value] of Object.entries(changes)) {
        if (value === null) before.delete(name);
        else before.set(name, value);
      }
      return before;
    });
  return [params, change];
}

export function RequestFilters({ side }: { side: Side }) {
  const [params, change] = useFilter();
  const isFiltered = OF_SEARCH.some((name) => params.has(name));
  return (
    <Group gap="xs" mb="sm" align="flex-end" role="search" aria-label="Request filters">
      <Named value={params.get("q") ?? ""} onChange={(q) => change({ q: q || null })} />
      <When params={params} change={change} />
      <Select
        label="Status"
        size="xs"
        w={112}
        placeholder="Any"
        clearable
        data={STATUSES.map((value) => ({ value, label: value }))}
        value={params.get("status")}
        onChange={(status) => change({ status })}
      />
      <Adapter
        side={side}
        value={params.get("adapter")}
        onChange={(adapter) => change({ adapter })}
      />
      <Select
        label="Class"
        size="xs"
        w={100}
        placeholder="Any"
        clearable
        data={CLASSES}
        value={params.get("class")}
        onChange={(value) => change({ class: value })}
      />
      <Slow params={params} change={change} />
      {isFiltered && (
        <Button
          size="xs"
          variant="subtle"
          leftSection={<IconX size={14} />}
          onClick={() => change(Object.fromEntries(OF_SEARCH.map((name) => [name, null])))}
        >
          Clear filters
        </Button>
      )}
    </Group>
  );
}

interface TextProps {
  value: string;
  onChange: (value: string) => void;
}

/** Searched for when it is left or Enter is pressed, not with each letter. */
function Named({ value, onChange }: TextProps) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const done = () => text.trim() !== value && onChange(text.trim());
  return (
    <TextInput
      label="Request ID or x-request-id"
      size="xs"
      w={196}
      placeholder="chatcmpl_… or req_…"
      leftSection={<IconSearch size={14} />}
      value={text}
      onChange={(event) => setText(event.currentTarget.value)}
      onBlur={done}
      onKeyDown={({ key }) => key === "Enter" && done()}
    />
  );
}

interface PartProps {
  params: URLSearchParams;
  change: (changes: Record<string, string | null>) => void;
}

function When({ params, change }: PartProps) {
  const [start, end] = [Number(params.get("start")), Number(params.get("end"))];
  const isFixed = start > 0 && end > start;
  const spans = (Object.keys(SPANS_S) as (keyof typeof SPANS_S)[]).map((value) => ({
    value: value as string,
    label: TIMES[value],
  }));
  const fixed = { value: "fixed", label: `${formatDate(start)} to ${formatDate(end)}` };
  return (
    <Select
      label="Ended"
      size="xs"
      w={isFixed ? 290 : 130}
      placeholder="Any time"
      clearable
      data={isFixed ? [fixed, ...spans] : spans}
      value={isFixed ? "fixed" : spanOf(params)}
      onChange={(range) => range !== "fixed" && change({ range, start: null, end: null })}
    />
  );
}

interface AdapterProps {
  side: Side;
  value: string | null;
  onChange: (value: string | null) => void;
}

function Adapter({ side, value, onChange }: AdapterProps) {
  const names = useAdapterNames(side);
  const shown = value === "" ? BASE_MODEL : (value ?? "");
  const [text, setText] = useState(shown);
  useEffect(() => setText(shown), [shown]);
  const done = (chosen: string) => {
    const name = chosen.trim();
    const next = name === "" ? null : name === BASE_MODEL ? "" : name;
    if (next !== value) onChange(next);
  };
  return (
    <Autocomplete
      label="Adapter"
      size="xs"
      w={150}
      placeholder="name or name@2"
      data={[BASE_MODEL, ...(names.data ?? [])]}
      value={text}
      onChange={setText}
      onOptionSubmit={done}
      onBlur={() => done(text)}
      onKeyDown={({ key }) => key === "Enter" && done(text)}
    />
  );
}

function Slow({ params, change }: PartProps) {
  const chosen = SLOW.find(({ value }) => params.has(value))?.value ?? null;
  const [of, setOf] = useState(chosen ?? "min_ttft_ms");
  const value = Number(params.get(chosen ?? of)) || "";
  const [ms, setMs] = useState<number | string>(value);
  useEffect(() => setMs(value), [value]);
  const set = (name: string, next: number | string) =>
    change({
      ...Object.fromEntries(SLOW.map(({ value: each }) => [each, null])),
      [name]: Number(next) > 0 ? String(Number(next)) : null,
    });
  return (
    <Group gap={4} align="flex-end" wrap="nowrap">
      <Select
        label="Slower than"
        size="xs"
        w={112}
        allowDeselect={false}
        data={SLOW}
        value={chosen ?? of}
        onChange={(name) => {
          if (name === null) return;
          setOf(name);
          if (chosen !== null) set(name, ms);
        }}
      />
      <NumberInput
        aria-label="Minimum duration in ms"
        size="xs"
        w={88}
        min={0}
        hideControls
        placeholder="≥ ms"
        suffix=" ms"
        value={ms}
        onChange={setMs}
        onBlur={() => Number(ms) !== Number(value) && set(chosen ?? of, ms)}
        onKeyDown={({ key }) => key === "Enter" && set(chosen ?? of, ms)}
      />
    </Group>
  );
}
