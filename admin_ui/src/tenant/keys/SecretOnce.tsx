/** A new secret, shown the only time it can be seen. */

import { Alert, Button, CopyButton, Group, Stack, TextInput } from "@mantine/core";
import { IconCheck, IconCopy, IconKey } from "@tabler/icons-react";

interface SecretOnceProps {
  secret: string;
  onClose: () => void;
}

export function SecretOnce({ secret, onClose }: SecretOnceProps) {
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
