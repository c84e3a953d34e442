/** The first page of a tenant that has sent nothing yet: how to send a first request. */

import { Anchor, Button, Group, List, SegmentedControl, Stack, Text } from "@mantine/core";
import { IconBook, IconKey, IconMessages, IconStack2 } from "@tabler/icons-react";
import { useState } from "react";
import { Link } from "react-router";
import { at, ORIGIN } from "../../api/base";
import { Code } from "../../components/Code";
import { Copyable } from "../../components/Copyable";
import { Panel } from "../../components/Panel";
import { firstRequest, LANGUAGES, type Language } from "./firstRequest";
import { useFirstModel } from "./queries";

const NAMES: Record<Language, string> = { curl: "curl", python: "Python" };

export default function Quickstart({ may }: { may: readonly string[] }) {
  const [language, setLanguage] = useState<Language>("curl");
  const model = useFirstModel(may.includes("inference"));
  const base = `${ORIGIN}/v1`;
  return (
    <Panel
      title="Quickstart"
      note="No requests yet. This page shows costs and charts after the first request has finished."
    >
      <Stack gap="lg">
        <List type="ordered" spacing="sm" size="sm">
          <List.Item>
            {may.includes("keys") ? (
              <>
                Create an API key under{" "}
                <Anchor component={Link} to="/keys" inherit>
                  Keys
                </Anchor>{" "}
                and export it as <code>TENORA_API_KEY</code>.
              </>
            ) : (
              <>
                Export your API key as <code>TENORA_API_KEY</code>.
              </>
            )}
          </List.Item>
          <List.Item>
            Use this base URL with any OpenAI client: <Copyable value={base} label="base URL" />
          </List.Item>
          <List.Item>Send a first request:</List.Item>
        </List>
        <div>
          <SegmentedControl
            mb="xs"
            size="xs"
            aria-label="Language"
            data={LANGUAGES.map((value) => ({ value, label: NAMES[value] }))}
            value={language}
            onChange={(value) => setLanguage(value === "python" ? "python" : "curl")}
          />
          <Code
            label={`A first request in ${NAMES[language]}`}
            code={firstRequest(language, base, model ?? "MODEL")}
          />
        </div>
        <Group gap="sm">
          <Button
            component="a"
            href={at("/docs")}
            variant="default"
            leftSection={<IconBook size={16} />}
          >
            API documentation
          </Button>
          {may.includes("keys") && (
            <Button
              component={Link}
              to="/keys"
              variant="default"
              leftSection={<IconKey size={16} />}
            >
              Create an API key
            </Button>
          )}
          {may.includes("inference") && (
            <Button
              component={Link}
              to="/playground"
              variant="default"
              leftSection={<IconMessages size={16} />}
            >
              Open playground
            </Button>
          )}
          {may.includes("adapters") && (
            <Button
              component={Link}
              to="/adapters"
              variant="default"
              leftSection={<IconStack2 size={16} />}
            >
              Upload adapter
            </Button>
          )}
        </Group>
        <Text size="xs" c="dimmed">
          All models and adapters that you can use are listed at <code>GET {base}/models</code>.
        </Text>
      </Stack>
    </Panel>
  );
}
