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
        description="Your user or key, your roles, and the browsers in which you are signed in. A session ends after a period of inactivity, when its key ends, or when you end it here."
        action={
          <Button variant="default" onClick={() => void signOut()}>
            Sign out
          </Button>
        }
      />
      <Stack>
        <SimpleGrid cols={{ base: 1, sm: 3 }}>
          <Stat
            label={session.isPerson ? "User" : "API key"}
            value={session.keyName ?? session.who}
            hint={session.isPerson ? undefined : session.who}
          />
          <Stat
            label="Current account"
            value={placeName(session.place)}
            hint={mayWords(session.place)}
          />
          <Stat
            label="Accounts"
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
  if (place === null) return "none";
  return place.role === "admin" ? "Operator" : (place.name ?? "Tenant");
}

function mayWords(place: Place | null): string | undefined {
  return place === null ? undefined : `roles: ${place.may.join(", ")}`;
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
      title="Active sessions"
      note="All sessions of this user or key, in this browser and in others."
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
            End all other sessions
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
          {current && <Badge color="teal">this browser</Badge>}
        </>
      ),
    },
    {
      key: "address",
      header: "IP address",
      width: 140,
      cell: ({ address }) => address ?? "unknown",
    },
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
      header: "Expires",
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
