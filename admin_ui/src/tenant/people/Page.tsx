/** A tenant's people, for its owners: who belongs here, as what, and who is invited. */

import { Button, Card, NativeSelect, Stack, Table, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconPlus } from "@tabler/icons-react";
import { useState } from "react";
import { ConfirmModal } from "../../components/ConfirmModal";
import { formatDate } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { ErrorState, TableSkeleton } from "../../components/states";
import { InviteModal } from "./InviteModal";
import {
  type Invitation,
  type MemberRole,
  type Person,
  ROLES,
  useChangeRole,
  usePeople,
  useRemove,
  useWithdraw,
} from "./queries";

export default function Page() {
  const [inviting, invite] = useDisclosure();
  const people = usePeople();
  return (
    <>
      <PageHeader
        title="People"
        description="Who may sign in to this account, and as what. A change holds for their next request."
        action={
          <Button leftSection={<IconPlus size={16} />} onClick={invite.open}>
            Invite
          </Button>
        }
      />
      {people.isPending && <TableSkeleton />}
      {people.error && <ErrorState error={people.error} onRetry={() => people.refetch()} />}
      {people.data && (
        <Stack>
          <Members people={people.data.people} />
          {people.data.open.length > 0 && <Invitations open={people.data.open} />}
        </Stack>
      )}
      <InviteModal opened={inviting} onClose={invite.close} />
    </>
  );
}

function nameOf(person: Person): string {
  return person.email ?? person.name ?? person.id;
}

function Members({ people }: { people: Person[] }) {
  const [leaving, setLeaving] = useState<Person | null>(null);
  const change = useChangeRole();
  const remove = useRemove();
  return (
    <Card>
      {change.error ? <ErrorState error={change.error} /> : null}
      <Table.ScrollContainer minWidth={520}>
        <Table aria-label="People">
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Person</Table.Th>
              <Table.Th>Role</Table.Th>
              <Table.Th>Signed in</Table.Th>
              <Table.Th>Actions</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {people.map((person) => (
              <Table.Tr key={person.id}>
                <Table.Td>
                  <Text size="sm">{nameOf(person)}</Text>
                  <Text size="xs">{person.email ? person.name : null}</Text>
                </Table.Td>
                <Table.Td>
                  <NativeSelect
                    aria-label={`Role of ${nameOf(person)}`}
                    size="xs"
                    value={person.role}
                    data={Object.keys(ROLES)}
                    onChange={(event) =>
                      change.mutate({
                        id: person.id,
                        role: event.currentTarget.value as MemberRole,
                      })
                    }
                  />
                </Table.Td>
                <Table.Td>{formatDate(person.signed_in_at)}</Table.Td>
                <Table.Td>
                  <Button size="xs" variant="default" onClick={() => setLeaving(person)}>
                    Remove
                  </Button>
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Table.ScrollContainer>
      <ConfirmModal
        opened={leaving !== null}
        title="Remove a person"
        confirm="Remove"
        busy={remove.isPending}
        error={remove.error}
        onConfirm={() =>
          leaving && remove.mutate(leaving.id, { onSuccess: () => setLeaving(null) })
        }
        onClose={() => {
          remove.reset();
          setLeaving(null);
        }}
      >
        {leaving && nameOf(leaving)} is out with the next request, and what they run ends. Keys that
        they made stay.
      </ConfirmModal>
    </Card>
  );
}

function Invitations({ open }: { open: Invitation[] }) {
  const withdraw = useWithdraw();
  return (
    <Card>
      {withdraw.error ? <ErrorState error={withdraw.error} /> : null}
      <Table.ScrollContainer minWidth={520}>
        <Table aria-label="Open invitations">
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Invited</Table.Th>
              <Table.Th>Role</Table.Th>
              <Table.Th>Until</Table.Th>
              <Table.Th>Actions</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {open.map((each) => (
              <Table.Tr key={each.id}>
                <Table.Td>{each.email ?? "whoever has the link"}</Table.Td>
                <Table.Td>{each.role}</Table.Td>
                <Table.Td>{formatDate(each.expires_at)}</Table.Td>
                <Table.Td>
                  <Button
                    size="xs"
                    variant="default"
                    loading={withdraw.isPending && withdraw.variables === each.id}
                    onClick={() => withdraw.mutate(each.id)}
                  >
                    Withdraw
                  </Button>
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Table.ScrollContainer>
    </Card>
  );
}
