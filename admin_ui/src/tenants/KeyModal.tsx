/** Makes a key for one tenant and shows it the only time it can be seen. */

import { Alert, Button, CopyButton, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { IconCheck, IconCopy, IconKey } from "@tabler/icons-react";
import { type FormEvent, useState } from "react";
import type { Schemas } from "../api/client";
import { ErrorState } from "../components/states";
import { type Tenant, useCreateKey } from "./queries";

interface KeyModalProps {
  tenant: Tenant | null;
  onClose: () => void;
}

export function KeyModal({ tenant, onClose }: KeyModalProps) {
  return (
    <Modal
      opened={tenant !== null}
      onClose={onClose}
      size="lg"
      title={<Text fw={600}>A key for {tenant?.name}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {tenant && <KeyForm key={tenant.id} tenant={tenant} onClose={onClose} />}
    </Modal>
  );
}

function KeyForm({ tenant, onClose }: { tenant: Tenant; onClose: () => void }) {
  const [name, setName] = useState("default");
  const [made, setMade] = useState<Schemas["NewApiKey"] | null>(null);
  const create = useCreateKey(setMade);
  if (made !== null) return <ShownOnce secret={made.key} onClose={onClose} />;

  function submit(event: FormEvent) {
    event.preventDefault();
    if (name.trim() !== "") create.mutate({ id: tenant.id, name: name.trim() });
  }

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput
          label="Name of the key"
          description="To tell it from others later, such as the machine that uses it"
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
          data-autofocus
        />
        {create.error ? <ErrorState error={create.error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Not now
          </Button>
          <Button type="submit" loading={create.isPending} disabled={name.trim() === ""}>
            Create key
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function ShownOnce({ secret, onClose }: { secret: string; onClose: () => void }) {
  return (
    <Stack>
      <Alert color="yellow" icon={<IconKey size={18} />} title="Copy it now">
        This key is shown once. Only a fingerprint of it is stored.
      </Alert>
      <TextInput
        label="Key"
        value={secret}
        readOnly
        onFocus={(event) => event.currentTarget.select()}
        styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
      />
      <Group justify="flex-end">
        <CopyButton value={secret}>
          {({ copied, copy }) => (
            <Button
              variant="light"
              leftSection={copied ? <IconCheck size={16} /> : <IconCopy size={16} />}
              onClick={copy}
            >
              {copied ? "Copied" : "Copy"}
            </Button>
          )}
        </CopyButton>
        <Button onClick={onClose}>Done</Button>
      </Group>
    </Stack>
  );
}
