/** Answers of a version beside the base model's, and how far the two are apart. */

import { Badge, Box, Card, Group, SimpleGrid, Stack, Text } from "@mantine/core";
import type { Schemas } from "../../api/client";
import { Sparkline } from "../../components/Sparkline";
import { commonStart } from "./model";

interface SamplesProps {
  findings: Schemas["Findings"];
  name: string;
}

export function Samples({ findings, name }: SamplesProps) {
  return (
    <Stack gap="sm">
      {findings.samples.map((sample) => (
        <SampleCard key={sample.prompt} sample={sample} base={findings.base_model} name={name} />
      ))}
    </Stack>
  );
}

function SampleCard(props: { sample: Schemas["Sample"]; base: string; name: string }) {
  const { prompt, base_answer, answer, kl } = props.sample;
  const start = commonStart(base_answer, answer);
  const largest = Math.max(0, ...kl);
  return (
    <Card padding="sm">
      <Group justify="space-between" gap="xs" mb="xs" wrap="nowrap" align="flex-start">
        <Text size="sm" fw={550}>
          {prompt}
        </Text>
        <Group gap="xs" wrap="nowrap">
          <Box w={64} c="teal" visibleFrom="xs">
            <Sparkline values={kl} label={`Divergence by token: ${prompt}`} height={18} />
          </Box>
          <Badge color={base_answer === answer ? "orange" : "teal"}>
            {base_answer === answer ? "same response" : "different response"}
          </Badge>
          <Text size="xs" c="dimmed" className="numbers" style={{ whiteSpace: "nowrap" }}>
            at least {largest.toPrecision(2)} nats
          </Text>
        </Group>
      </Group>
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="md">
        <Answer who={props.base} text={base_answer} start={start} />
        <Answer who={props.name} text={answer} start={start} />
      </SimpleGrid>
    </Card>
  );
}

/** What both say alike is dimmed. */
function Answer({ who, text, start }: { who: string; text: string; start: number }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {who}
      </Text>
      <Text size="sm" style={{ whiteSpace: "pre-wrap", overflowWrap: "anywhere" }}>
        <Text span inherit c="dimmed">
          {text.slice(0, start)}
        </Text>
        {text.slice(start)}
        {text === "" && (
          <Text span inherit c="dimmed" fs="italic">
            empty
          </Text>
        )}
      </Text>
    </div>
  );
}
