/** A tenant's people, for its owners. */

import { Button } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconPlus } from "@tabler/icons-react";
import { PageHeader } from "../../components/PageHeader";
import { InviteModal } from "../../people/InviteModal";
import { People } from "../../people/People";

export default function Page() {
  const [inviting, invite] = useDisclosure();
  return (
    <>
      <PageHeader
        title="People"
        description="People who can sign in to this account, and their roles. Role changes apply from the next request."
        action={
          <Button leftSection={<IconPlus size={16} />} onClick={invite.open}>
            Invite
          </Button>
        }
      />
      <People whose="own" mayChange />
      <InviteModal whose="own" opened={inviting} onClose={invite.close} />
    </>
  );
}
