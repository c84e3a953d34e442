import { Alert, Button, Group } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconUserPlus } from "@tabler/icons-react";
import { Link } from "react-router";
import { InviteTenantModal } from "../tenant/PeopleTab";
import type { Tenant } from "./queries";

interface CreatedProps {
  tenant: Tenant;
  onClose: () => void;
}

/** What comes after a tenant is made: somebody who can sign in to it. */
export function Created({ tenant, onClose }: CreatedProps) {
  const [isInviting, invite] = useDisclosure();
  return (
    <>
      <Alert
        color="teal"
        icon={<IconUserPlus size={18} />}
        role="status"
        title={`${tenant.name} was created`}
        withCloseButton
        closeButtonLabel="Close"
        onClose={onClose}
      >
        <Group gap="sm" mt={4}>
          <Button size="xs" variant="light" onClick={invite.open}>
            Invite its first person
          </Button>
          <Button
            size="xs"
            variant="default"
            component={Link}
            to={`/operator/tenants/${tenant.id}`}
          >
            Open the tenant
          </Button>
        </Group>
      </Alert>
      <InviteTenantModal tenant={tenant} isFirst opened={isInviting} onClose={invite.close} />
    </>
  );
}
