/** Who may sign in to a tenant, and who is invited; its first person comes by the operator's link. */

import { Alert, Button, Group, Stack } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconPlus } from "@tabler/icons-react";
import { InviteModal } from "../../people/InviteModal";
import { People } from "../../people/People";
import { usePeople } from "../../people/queries";
import { useHasProvider } from "../../signin/methods";
import type { Tenant } from "../tenants/queries";

interface PeopleTabProps {
  tenant: Pick<Tenant, "id" | "name">;
  mayChange: boolean;
}

export function PeopleTab({ tenant, mayChange }: PeopleTabProps) {
  const whose = { tenant: tenant.id };
  const people = usePeople(whose);
  const [isInviting, invite] = useDisclosure();
  const isFirst = people.first !== undefined && people.rows.length === 0;
  const label = isFirst ? "Invite the first person" : "Invite";
  return (
    <Stack>
      {mayChange && (
        <Group justify="flex-end">
          <Button leftSection={<IconPlus size={16} />} size="xs" onClick={invite.open}>
            {label}
          </Button>
        </Group>
      )}
      <People whose={whose} mayChange={mayChange} />
      {mayChange && <NoProvider />}
      <InviteTenantModal
        tenant={tenant}
        isFirst={isFirst}
        opened={isInviting}
        onClose={invite.close}
      />
    </Stack>
  );
}

interface InviteTenantModalProps {
  tenant: Pick<Tenant, "id" | "name">;
  /** Then it is an owner, who can invite the others. */
  isFirst: boolean;
  opened: boolean;
  onClose: () => void;
}

export function InviteTenantModal({ tenant, isFirst, opened, onClose }: InviteTenantModalProps) {
  return (
    <InviteModal
      whose={{ tenant: tenant.id }}
      role={isFirst ? "owner" : undefined}
      title={`Invite a person to ${tenant.name}`}
      opened={opened}
      onClose={onClose}
    />
  );
}

/** What an invitation needs, where that is missing. */
function NoProvider() {
  if (useHasProvider() !== false) return null;
  return (
    <Alert color="yellow" title="No sign-in provider">
      An invitation's link can be used once a sign-in provider is set up on this server.
    </Alert>
  );
}
