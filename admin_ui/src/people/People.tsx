/** Who belongs somewhere, as what, and who is invited; the same for tenants and the operator. */

import { Anchor, Badge, Button, Checkbox, Group, NativeSelect, Stack, Text } from "@mantine/core";
import { IconUsersGroup } from "@tabler/icons-react";
import { useState } from "react";
import { nameOf } from "../api/person";
import { ConfirmModal } from "../components/ConfirmModal";
import { type Column, DataTable } from "../components/DataTable";
import { formatDate } from "../components/format";
import { Panel } from "../components/Panel";
import { EmptyState, ErrorState, TableSkeleton } from "../components/states";
import { type Invitation, type Person, rolesOf, type Whose } from "./model";
import {
  useChangeRole,
  useInvitations,
  usePeople,
  useRemove,
  useSignOut,
  useWithdraw,
} from "./queries";

interface PeopleProps {
  whose: Whose;
  mayChange: boolean;
}

export function People({ whose, mayChange }: PeopleProps) {
  return (
    <Stack>
      <Members whose={whose} mayChange={mayChange} />
      <Invitations whose={whose} mayChange={mayChange} />
    </Stack>
  );
}

function Members({ whose, mayChange }: PeopleProps) {
  const people = usePeople(whose);
  const [leaving, setLeaving] = useState<Person | null>(null);
  const [demoted, setDemoted] = useState<Demoted | null>(null);
  const [signedOut, setSignedOut] = useState<Person | null>(null);
  const change = useChangeRole(whose);
  if (people.isPending) return <TableSkeleton />;
  if (people.error) return <ErrorState error={people.error} onRetry={people.refetch} />;
  const columns: Column<Person>[] = [
    {
      key: "person",
      header: "Person",
      cell: (person) => (
        <>
          <Text size="sm" fw={550} truncate>
            {nameOf(person)}
          </Text>
          {person.email && person.name && (
            <Text size="xs" c="dimmed" truncate>
              {person.name}
            </Text>
          )}
        </>
      ),
    },
    {
      key: "role",
      header: "Role",
      width: 150,
      cell: (person) =>
        mayChange ? (
          <NativeSelect
            aria-label={`Role of ${nameOf(person)}`}
            size="xs"
            value={person.role}
            data={Object.keys(rolesOf(whose))}
            onChange={(event) => {
              const role = event.currentTarget.value;
              if (person.role === "owner") setDemoted({ person, role });
              else change.mutate({ id: person.id, role });
            }}
          />
        ) : (
          person.role
        ),
    },
    {
      key: "signed_in",
      header: "Last sign-in",
      width: 160,
      cell: ({ signed_in_at }) => formatDate(signed_in_at),
    },
    {
      key: "joined",
      header: "Joined",
      width: 160,
      cell: ({ joined_at }) => formatDate(joined_at),
    },
  ];
  if (mayChange)
    columns.push({
      key: "actions",
      header: "Actions",
      width: 210,
      cell: (person) => (
        <Group gap={6} wrap="nowrap">
          <Button
            size="compact-sm"
            variant="default"
            aria-label={`End the sessions of ${nameOf(person)}`}
            onClick={() => setSignedOut(person)}
          >
            End sessions
          </Button>
          <Button
            size="compact-sm"
            variant="default"
            aria-label={`Remove ${nameOf(person)}`}
            onClick={() => setLeaving(person)}
          >
            Remove
          </Button>
        </Group>
      ),
    });
  return (
    <>
      {change.error && demoted === null ? <ErrorState error={change.error} /> : null}
      {people.rows.length === 0 ? (
        <EmptyState icon={<IconUsersGroup size={24} />} title="No people yet">
          People join with an invitation link. This needs a sign-in provider on this server; API
          keys work without one.
        </EmptyState>
      ) : (
        <DataTable
          label="People"
          columns={columns}
          rows={people.rows}
          rowKey={({ id }) => id}
          rowHeight={52}
          {...people.more}
        />
      )}
      <ConfirmModal
        opened={demoted !== null}
        title="Change role"
        confirm="Change role"
        busy={change.isPending}
        error={change.error}
        onConfirm={() =>
          demoted &&
          change.mutate(
            { id: demoted.person.id, role: demoted.role },
            { onSuccess: () => setDemoted(null) },
          )
        }
        onClose={() => {
          change.reset();
          setDemoted(null);
        }}
      >
        {demoted && nameOf(demoted.person)} becomes {demoted?.role}. Of what they created, keys are
        revoked, webhooks disabled and open invitations withdrawn that this role does not allow.
      </ConfirmModal>
      {leaving && <RemoveModal whose={whose} person={leaving} onClose={() => setLeaving(null)} />}
      {signedOut && (
        <SignOutModal whose={whose} person={signedOut} onClose={() => setSignedOut(null)} />
      )}
    </>
  );
}

interface Demoted {
  person: Person;
  role: string;
}

interface PersonDialogProps {
  whose: Whose;
  person: Person;
  onClose: () => void;
}

function RemoveModal({ whose, person, onClose }: PersonDialogProps) {
  const remove = useRemove(whose);
  const [revokeKeys, setRevokeKeys] = useState(true);
  return (
    <ConfirmModal
      opened
      title="Remove person"
      confirm="Remove"
      busy={remove.isPending}
      error={remove.error}
      onConfirm={() => remove.mutate({ id: person.id, revokeKeys }, { onSuccess: onClose })}
      onClose={onClose}
    >
      {nameOf(person)} loses access immediately. Their sessions end, their running requests are
      stopped, and open invitations that they created are withdrawn.
      <Checkbox
        mt="sm"
        label={`Revoke the ${whose === "operator" ? "admin and API" : "API"} keys that they created or rotated, and disable their webhooks`}
        checked={revokeKeys}
        onChange={(event) => setRevokeKeys(event.currentTarget.checked)}
      />
    </ConfirmModal>
  );
}

function SignOutModal({ whose, person, onClose }: PersonDialogProps) {
  const signOut = useSignOut(whose);
  return (
    <ConfirmModal
      opened
      title="End sessions"
      confirm="End sessions"
      busy={signOut.isPending}
      error={signOut.error}
      onConfirm={() => signOut.mutate(person.id, { onSuccess: onClose })}
      onClose={onClose}
    >
      {nameOf(person)} is signed out immediately in all browsers and can sign in again.
    </ConfirmModal>
  );
}

const STATES: Record<Invitation["state"], string> = {
  open: "teal",
  used: "gray",
  expired: "yellow",
};

function Invitations({ whose, mayChange }: PeopleProps) {
  const invitations = useInvitations(whose);
  const withdraw = useWithdraw(whose);
  const [isAll, setAll] = useState(false);
  const open = invitations.rows.filter(({ state }) => state === "open");
  const rows = isAll ? invitations.rows : open;
  if (invitations.error)
    return <ErrorState error={invitations.error} onRetry={invitations.refetch} />;
  if (invitations.rows.length === 0) return null;
  return (
    <Panel
      title="Invitations"
      note={`${open.length} open. Each link can be used by one person.`}
      padding="0"
      action={
        <Anchor component="button" type="button" size="sm" onClick={() => setAll(!isAll)}>
          {isAll ? "Show only open invitations" : "Show used and expired invitations"}
        </Anchor>
      }
    >
      {withdraw.error ? <ErrorState error={withdraw.error} /> : null}
      {rows.length > 0 && (
        <DataTable
          label={isAll ? "All invitations" : "Open invitations"}
          columns={[
            { key: "who", header: "Invitee", cell: ({ email }) => email ?? "anyone with the link" },
            { key: "role", header: "Role", width: 120, cell: ({ role }) => role },
            {
              key: "state",
              header: "Status",
              width: 110,
              cell: ({ state }) => <Badge color={STATES[state]}>{state}</Badge>,
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
              width: 120,
              cell: (each) =>
                mayChange && each.state === "open" ? (
                  <Button
                    size="compact-sm"
                    variant="default"
                    aria-label={`Withdraw invitation for ${each.email ?? "anyone with the link"}`}
                    loading={withdraw.isPending && withdraw.variables === each.id}
                    onClick={() => withdraw.mutate(each.id)}
                  >
                    Withdraw
                  </Button>
                ) : null,
            },
          ]}
          rows={rows}
          rowKey={({ id }) => id}
          {...invitations.more}
        />
      )}
    </Panel>
  );
}
