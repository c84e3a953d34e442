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
      title="Prompt and answer"
      note={data && `Kept until ${formatDate(data.expires_at)}, sealed; read by who may make keys.`}
    >
      {!isAsked && (
        <Button size="xs" variant="default" onClick={() => ask(true)}>
          Show what was kept
        </Button>
      )}
      {found.error && <ErrorState error={found.error} />}
      {data === null && (
        <Text size="sm" c="dimmed">
          Nothing of them was kept. Prompts and answers are kept only where the tenant turns it on
          (`keep_contents_days` of PATCH /v1/settings), and never shown to the operator.
        </Text>
      )}
      {data && (
        <Stack gap="sm">
          <Code label="The request" code={JSON.stringify(data.request, null, 2)} />
          {data.choices.map(({ index, text, finish_reason }) => (
            <Code
              key={index}
              label={`Answer ${index + 1}${finish_reason ? "" : ", cut off"}`}
              code={text}
            />
          ))}
        </Stack>
      )}
    </Panel>
  );
}
