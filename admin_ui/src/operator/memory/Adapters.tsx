/** Adapters by the tier that has them, and what an operator may do about one. */

import { Badge, Button, Group, SegmentedControl, Text, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useState } from "react";
import { useSession } from "../../api/context";
import { ConfirmModal } from "../../components/ConfirmModal";
import { type Column, DataTable } from "../../components/DataTable";
import { counted, formatAgo, formatBytes, formatCount, shortDigest } from "../../components/format";
import { Panel } from "../../components/Panel";
import { ErrorState, TableSkeleton } from "../../components/states";
import type { Place, Snapshot } from "./model";
import { type Act, type Tier, useAct, usePlaces } from "./queries";

const TIERS: Array<{ value: Tier; label: string }> = [
  { value: "device", label: "Device" },
  { value: "host", label: "Host memory" },
  { value: "shared", label: "Redis" },
  { value: "store", label: "Object store" },
];

const EMPTY: Record<Tier, string> = {
  device:
    "No adapter is in device memory. An adapter is loaded by its first request, or when you pin it.",
  host: "No adapter is in host memory only. Adapters that are also in device memory are listed under Device.",
  shared:
    "No adapter is in Redis only. Adapters that are also in host or device memory are listed there.",
  store: "No adapter is in the object store only. All adapters are in a faster tier.",
};

const ASKED: Record<Act["what"], { title: string; confirm: string; text: string }> = {
  pin: {
    title: "Pin in device memory?",
    confirm: "Pin",
    text: "The adapter stays in device memory, also after a restart, until you unpin it. Memory for a pinned adapter is not billed.",
  },
  unpin: {
    title: "Unpin this adapter?",
    confirm: "Unpin",
    text: "The adapter stays in device memory until the memory is needed for something else.",
  },
  evict: {
    title: "Evict from device memory?",
    confirm: "Evict",
    text: "Its pages are freed immediately, and the next request for it waits until it is loaded again. An adapter that is in use cannot be evicted.",
  },
};

export const labelOf = (place: Place) =>
  place.name === null ? shortDigest(place.digest) : `${place.name}@${place.version}`;

export function Adapters({ snapshot }: { snapshot: Snapshot }) {
  const { session } = useSession();
  const may = session?.place?.may.some((role) => role === "owner" || role === "operator") ?? false;
  const [tier, setTier] = useState<Tier>("device");
  const [typed, setTyped] = useState("");
  const [q] = useDebouncedValue(typed.trim(), 300);
  const [asked, setAsked] = useState<Act | null>(null);
  const act = useAct(() => setAsked(null));
  const { view } = snapshot;
  return (
    <Panel
      title="Adapters by tier"
      padding="0"
      note={`${formatCount(view.pinned_pages)} pages are pinned, ${formatCount(view.pinnable_pages)} more can be; ${formatCount(view.slots)} adapters fit in device memory at the same time.`}
      action={
        <Group gap="xs">
          <SegmentedControl
            size="xs"
            data={TIERS}
            value={tier}
            aria-label="Tier"
            onChange={(value) => setTier(value as Tier)}
          />
          <TextInput
            size="xs"
            aria-label="Filter by adapter or tenant"
            placeholder="Adapter or tenant"
            value={typed}
            onChange={(event) => setTyped(event.currentTarget.value)}
          />
        </Group>
      }
    >
      <Places
        tier={tier}
        q={q}
        snapshot={snapshot}
        onAct={
          may
            ? (next) => {
                act.reset();
                setAsked(next);
              }
            : null
        }
      />
      {asked && (
        <ConfirmModal
          opened
          title={ASKED[asked.what].title}
          confirm={ASKED[asked.what].confirm}
          busy={act.isPending}
          error={act.error}
          onConfirm={() => act.mutate(asked)}
          onClose={() => setAsked(null)}
        >
          <Text span fw={600}>
            {asked.label}
          </Text>
          . {ASKED[asked.what].text}
        </ConfirmModal>
      )}
    </Panel>
  );
}

interface PlacesProps {
  tier: Tier;
  q: string;
  snapshot: Snapshot;
  onAct: ((act: Act) => void) | null;
}

function Places({ tier, q, snapshot, onAct }: PlacesProps) {
  const found = usePlaces(tier, q);
  const { error, isPending, refetch } = found;
  if (isPending) return <TableSkeleton />;
  if (error) return <ErrorState error={error} onRetry={() => refetch()} />;
  const rows = merged(found.data?.pages.flatMap(({ data }) => data) ?? [], snapshot, tier);
  if (rows.length === 0)
    return (
      <Text size="sm" c="dimmed" px="md" pb="md">
        {q ? "No adapters match. Enter the start of an adapter's or tenant's name." : EMPTY[tier]}
      </Text>
    );
  return (
    <DataTable
      label={`Adapters: ${tier}`}
      columns={columnsOf(snapshot, onAct)}
      rows={rows}
      rowKey={({ id }) => id}
      rowHeight={42}
      minWidth={860}
      maxHeight={420}
      hasMore={found.hasNextPage}
      isLoadingMore={found.isFetchingNextPage}
      onMore={() => void found.fetchNextPage()}
    />
  );
}

/** The list's rows with what the arena, which is newer, says of them. */
function merged(listed: Place[], { view }: Snapshot, tier: Tier): Place[] {
  if (tier !== "device") return listed;
  const newer = new Map(view.adapters.map((place) => [place.digest, place]));
  return listed.flatMap((place) => {
    const now = newer.get(place.digest);
    if (now === undefined || now.tier === "host") return [];
    const { tier: where, pages, references, last_used_at, pinned, pin_state, pin_reason } = now;
    return [
      { ...place, tier: where, pages, references, last_used_at, pinned, pin_state, pin_reason },
    ];
  });
}

function columnsOf({ view }: Snapshot, onAct: PlacesProps["onAct"]): Column<Place>[] {
  const columns: Column<Place>[] = [
    { key: "name", header: "Adapter", cell: labelOf },
    { key: "tenant", header: "Tenant", cell: ({ tenant }) => tenant ?? "" },
    { key: "rank", header: "Rank", align: "right", cell: ({ rank }) => rank || "" },
    {
      key: "pages",
      header: "Pages",
      align: "right",
      cell: ({ pages }) => (pages ? formatCount(pages) : ""),
    },
    {
      key: "size",
      header: "Size",
      align: "right",
      cell: ({ pages }) => (pages ? formatBytes(pages * view.page_bytes) : ""),
    },
    {
      key: "used",
      header: "Last used",
      align: "right",
      cell: ({ references, last_used_at }) =>
        references > 0
          ? `in use by ${counted(references, "sequence")}`
          : last_used_at === null
            ? ""
            : formatAgo(last_used_at, view.at),
    },
    { key: "pin", header: "Pin", cell: (place) => <PinBadge place={place} /> },
  ];
  if (onAct)
    columns.push({
      key: "act",
      header: "Actions",
      align: "right",
      cell: (place) => <Actions place={place} onAct={onAct} />,
    });
  return columns;
}

function PinBadge({ place }: { place: Place }) {
  if (place.tier === "loading" && place.pin_state === null)
    return <Badge color="blue">loading</Badge>;
  switch (place.pin_state ?? (place.pinned ? "pinned" : null)) {
    case "pinned":
      return <Badge color="teal">pinned</Badge>;
    case "loading":
      return <Badge color="blue">pin pending</Badge>;
    case null:
      return null;
    default:
      return (
        <Badge color="orange" title={place.pin_reason ?? undefined}>
          pin {place.pin_state}
        </Badge>
      );
  }
}

function Actions({ place, onAct }: { place: Place; onAct: (act: Act) => void }) {
  const label = labelOf(place);
  const isPinned = place.pinned || (place.pin_state ?? null) !== null;
  const button = (what: Act["what"], shown: string) => (
    <Button
      size="compact-xs"
      variant="default"
      aria-label={`${shown} ${label}`}
      onClick={() => onAct({ what, id: place.id, label })}
    >
      {shown}
    </Button>
  );
  return (
    <Group gap={6} justify="flex-end" wrap="nowrap">
      {isPinned ? button("unpin", "Unpin") : button("pin", "Pin")}
      {place.tier === "device" && !isPinned && button("evict", "Evict")}
    </Group>
  );
}
