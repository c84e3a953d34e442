/** Who may act for the operator: admin keys, people, invitations. */

import { Anchor, Button, Stack } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconPlus } from "@tabler/icons-react";
import { Link } from "react-router";
import { useIsRole } from "../../api/roles";
import { PageHeader } from "../../components/PageHeader";
import { InviteModal } from "../../people/InviteModal";
import { People } from "../../people/People";
import { AdminKeys } from "./AdminKeys";

export default function Page() {
  const [inviting, invite] = useDisclosure();
  const isOwner = useIsRole();
  return (
    <>
      <PageHeader
        title="Access"
        description={
          <>
            People and admin keys with access to the operator's pages, and their roles. Your own
            sessions are under{" "}
            <Anchor component={Link} to="/account" size="sm" underline="always">
              My sessions
            </Anchor>
            .
          </>
        }
        action={
          isOwner && (
            <Button leftSection={<IconPlus size={16} />} onClick={invite.open}>
              Invite
            </Button>
          )
        }
      />
      <Stack>
        <AdminKeys mayChange={isOwner} />
        <People whose="operator" mayChange={isOwner} />
      </Stack>
      <InviteModal whose="operator" opened={inviting} onClose={invite.close} />
    </>
  );
}
