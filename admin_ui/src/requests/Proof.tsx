/** The receipt as a document that proves itself: what it is signed by, how to check it, the file. */

import { Alert, Button, Group, Stack, Text } from "@mantine/core";
import { IconDownload, IconShieldCheck } from "@tabler/icons-react";
import { describe } from "../api/errors";
import { Code } from "../components/Code";
import type { Receipt } from "./model";
import { saveReceipt, useVerdict } from "./queries";

const VERDICTS = {
  holds: {
    color: "teal",
    text: "The signature holds: nothing in this receipt was changed since the server signed it.",
  },
  broken: {
    color: "red",
    text: "The signature does not hold: this receipt is not what was signed.",
  },
  "unknown key": {
    color: "red",
    text: "The key that it names is not among the server's keys: it was taken back, or is another server's.",
  },
  "cannot be checked here": {
    color: "yellow",
    text: "This browser cannot check it (it knows no Ed25519, or the page did not come by https). Use the commands below.",
  },
} as const;

export function Proof({ receipt, text }: { receipt: Receipt; text: string }) {
  const verdict = useVerdict();
  const found = verdict.data && VERDICTS[verdict.data];
  const origin = window.location.origin;
  return (
    <Stack gap="sm">
      <Text size="sm">
        This receipt is signed (Ed25519 over its canonical JSON, RFC 8785) by the key{" "}
        <Text span ff="monospace" size="xs">
          {receipt.signature.kid}
        </Text>
        . With the server's public keys anybody can check it, without asking the server again; a
        changed field is named.
      </Text>
      <Group gap="xs">
        <Button
          size="xs"
          variant="light"
          leftSection={<IconShieldCheck size={16} />}
          loading={verdict.isPending}
          onClick={() => verdict.mutate(text)}
        >
          Check it here
        </Button>
        <Button
          size="xs"
          variant="default"
          leftSection={<IconDownload size={16} />}
          onClick={() => saveReceipt(text, receipt.id)}
        >
          Download
        </Button>
      </Group>
      {found && (
        <Alert color={found.color} role="status" p="xs">
          {found.text}
        </Alert>
      )}
      {verdict.error && (
        <Alert color="red" role="alert" p="xs">
          {describe(verdict.error)}
        </Alert>
      )}
      <Code
        label="How to check the receipt offline"
        code={`curl -s ${origin}/.well-known/tenora-keys.json > keys.json\ntenora receipt verify ${receipt.id}.json --keys keys.json`}
      />
    </Stack>
  );
}
