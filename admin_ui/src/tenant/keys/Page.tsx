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
      Create key
    </Button>
  );
  return (
    <>
      <PageHeader
        title="Keys"
        description="API keys of this account, with their scopes and limits. A key cannot create a key with more rights than it has."
        action={button}
      />
      <KeysTable owner={null} createAction={button} />
      <CreateKeyModal owner={null} title="Create key" opened={creating} onClose={create.close} />
    </>
  );
}
