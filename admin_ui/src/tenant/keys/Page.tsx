/** A tenant's own keys. */

import { Button } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconPlus } from "@tabler/icons-react";
import { PageHeader } from "../../components/PageHeader";
import { CreateKeyModal } from "./KeyModals";
import { KeysTable } from "./KeysTable";

export default function Page() {
  const [creating, create] = useDisclosure();
  const button = (
    <Button leftSection={<IconPlus size={16} />} onClick={create.open}>
      New key
    </Button>
  );
  return (
    <>
      <PageHeader
        title="Keys"
        description="Who may use this account, for what, and how much. A key gives another no more than it has itself."
        action={button}
      />
      <KeysTable owner={null} createAction={button} />
      <CreateKeyModal owner={null} title="New key" opened={creating} onClose={create.close} />
    </>
  );
}
