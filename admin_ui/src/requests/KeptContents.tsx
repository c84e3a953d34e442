/** Prompt and answers of a request, where its tenant has them kept. */

import { Button, Stack, Text } from "@mantine/core";
import { useState } from "react";
import { Code } from "../components/Code";
import { formatDate } from "../components/format";
import { Panel } from "../components/Panel";
import { ErrorState } from "../components/states";
import { useContents } from "./queries";

export function KeptContents({ request }: { request: string }) {
  // Asked for by a click: most requests have none, and what was written is not everybody's to see
  // over a shoulder.
  const [isAsked, ask] = useState(false);
  const found = useContents(request, isAsked);
  const { data } = found;
  return (
    <Panel
      title="Prompt and response"
      note={
        data &&
        `Stored encrypted until ${formatDate(data.expires_at)}. Visible to roles that can create API keys.`
      }
    >
      {!isAsked && (
        <Button size="xs" variant="default" onClick={() => ask(true)}>
          Show stored content
        </Button>
      )}
      {found.error && <ErrorState error={found.error} />}
      {data === null && (
        <Text size="sm" c="dimmed">
          No content is stored for this request. Prompts and responses are stored only if the tenant
          turns this on (`keep_contents_days` in PATCH /v1/settings), and are never shown to the
          operator.
        </Text>
      )}
      {data && (
        <Stack gap="sm">
          <Code label="Request" code={JSON.stringify(data.request, null, 2)} />
          {data.choices.map(({ index, text, finish_reason }) => (
            <Code
              key={index}
              label={`Response ${index + 1}${finish_reason ? "" : ", incomplete"}`}
              code={text}
            />
          ))}
        </Stack>
      )}
    </Panel>
  );
}
