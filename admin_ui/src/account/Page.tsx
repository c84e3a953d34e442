/** Who is signed in here, and where else: each session can be ended. */

import { Badge, Button, SimpleGrid, Stack, Text } from "@mantine/core";
import { useSession } from "../api/context";
import type { Place } from "../api/session";
import { type Column, DataTable } from "../components/DataTable";
import { formatDate } from "../components/format";
import { PageHeader } from "../components/PageHeader";
import { Panel } from "../components/Panel";
import { Stat } from "../components/Stat";
import { ErrorState, TableSkeleton } from "../components/states";
import { browserOf } from "./model";
import { type SignedIn, useEndSession, useSessions } from "./queries";

export default function Page() {
  const { session, signOut } = useSession();
  if (session === null) return null;
  return (
    <>
      <PageHeader
        title="My sessions"
        description="Who you are here, and where you are signed in. A session ends when unused for a while, with the key it was begun with, and here."
        action={
          <Button variant="default" onClick={() => void signOut()}>
            Sign out
          </Button>
        }
      />
      <Stack>
        <SimpleGrid cols={{ base: 1, sm: 3 }}>
          <Stat
            label={session.isPerson ? "Person" : "Key"}
            value={session.keyName ?? session.who}
            hint={session.isPerson ? undefined : session.who}
          />
          <Stat
            label="Looking at"
            value={placeName(session.place)}
            hint={mayWords(session.place)}
          />
          <Stat
            label="Belongs to"
            value={session.places.length}
            hint={session.places.map(placeName).join(", ")}
          />
        </SimpleGrid>
        <Sessions />
      </Stack>
    </>
  );
}

function placeName(place: Place | null): string {
  if (place === null) return "nothing yet";
  return place.role === "admin" ? "Operator" : (place.name ?? "Tenant");
}

function mayWords(place: Place | null): string | undefined {
  return place === null ? undefined : `may: ${place.may.join(", ")}`;
}

function Sessions() {
  const sessions = useSessions();
  const end = useEndSession();
  if (sessions.isPending) return <TableSkeleton />;
  if (sessions.error && !sessions.data)
    return <ErrorState error={sessions.error} onRetry={() => sessions.refetch()} />;
  const others = sessions.data.filter(({ current }) => !current);
  return (
    <Panel
      title="Signed in"
      note="The same person or key, in this browser and in others."
      padding="0"
      action={
        others.length > 1 && (
          <Button
            size="xs"
            variant="default"
            loading={end.isPending}
            onClick={() => {
              for (const { id } of others) end.mutate(id);
            }}
          >
            End all others
          </Button>
        )
      }
    >
      {end.error ? <ErrorState error={end.error} /> : null}
      <DataTable
        label="Sessions"
        columns={columnsOf(end.isPending ? end.variables : undefined, (id) => end.mutate(id))}
        rows={sessions.data}
        rowKey={({ id }) => id}
        minWidth={720}
      />
    </Panel>
  );
}

function columnsOf(ending: string | undefined, onEnd: (id: string) => void): Column<SignedIn>[] {
  return [
    {
      key: "browser",
      header: "Browser",
      cell: ({ user_agent, current }) => (
        <>
          <Text span size="sm" title={user_agent ?? undefined}>
            {browserOf(user_agent)}
          </Text>{" "}
          {current && <Badge color="teal">this one</Badge>}
        </>
      ),
    },
    { key: "address", header: "From", width: 140, cell: ({ address }) => address ?? "unknown" },
    {
      key: "used",
      header: "Last used",
      width: 160,
      cell: ({ last_used_at }) => formatDate(last_used_at),
    },
    {
      key: "begun",
      header: "Signed in",
      width: 160,
      cell: ({ created_at }) => formatDate(created_at),
    },
    {
      key: "until",
      header: "At most until",
      width: 160,
      cell: ({ expires_at }) => formatDate(expires_at),
    },
    {
      key: "actions",
      header: "Actions",
      width: 90,
      cell: ({ id, current, user_agent }) =>
        current ? null : (
          <Button
            size="compact-sm"
            variant="default"
            loading={ending === id}
            aria-label={`End the session of ${browserOf(user_agent)}`}
            onClick={() => onEnd(id)}
          >
            End
          </Button>
        ),
    },
  ];
}
