/** The receipt as a document that proves itself: what it is signed by, how to check it, the file. */

import { Alert, Button, Group, Stack, Text } from "@mantine/core";
import { IconDownload, IconShieldCheck } from "@tabler/icons-react";
import { ORIGIN } from "../api/base";
import { describe } from "../api/errors";
import { Code } from "../components/Code";
import type { Receipt } from "./model";
import { saveReceipt, useVerdict } from "./queries";

const VERDICTS = {
  holds: {
    color: "teal",
    text: "The signature is valid: the receipt has not been changed since the server signed it.",
  },
  broken: {
    color: "red",
    text: "The signature is not valid: the receipt has been changed since it was signed.",
  },
  "unknown key": {
    color: "red",
    text: "The signing key is not one of this server's keys. It was withdrawn, or the receipt is from another server.",
  },
  "cannot be checked here": {
    color: "yellow",
    text: "This browser cannot verify the signature: it does not support Ed25519, or the page was not loaded over HTTPS. Use the commands below.",
  },
} as const;

export function Proof({ receipt, text }: { receipt: Receipt; text: string }) {
  const verdict = useVerdict();
  const found = verdict.data && VERDICTS[verdict.data];
  const origin = ORIGIN;
  return (
    <Stack gap="sm">
      <Text size="sm">
        This receipt is signed (Ed25519 over its canonical JSON, RFC 8785) by the key{" "}
        <Text span ff="monospace" size="xs">
          {receipt.signature.kid}
        </Text>
        . Anyone can verify it offline with the server's public keys. The check names any changed
        field.
      </Text>
      <Group gap="xs">
        <Button
          size="xs"
          variant="light"
          leftSection={<IconShieldCheck size={16} />}
          loading={verdict.isPending}
          onClick={() => verdict.mutate(text)}
        >
          Verify signature
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
        label="Verify the receipt offline"
        code={`curl -s ${origin}/.well-known/tenora-keys.json > keys.json\ntenora receipt verify ${receipt.id}.json --keys keys.json`}
      />
    </Stack>
  );
}
