import { Accordion, Group, SegmentedControl, Select } from "@mantine/core";
import { useState } from "react";
import { ORIGIN } from "../../api/base";
import { Code } from "../../components/Code";
import { chatRequest, codeOf, LANGUAGES, type Language, type Setup, type Turn } from "./model";

/** The same request for somebody's program. */
export function CodePanel({ setup, turns }: { setup: Setup; turns: readonly Turn[] }) {
  const [language, setLanguage] = useState<Language>("curl");
  const [chosen, setChosen] = useState<string | null>(null);
  const models = [...new Set(setup.models)];
  const model = chosen !== null && models.includes(chosen) ? chosen : (models[0] ?? "");
  return (
    <Accordion variant="separated" mt="md">
      <Accordion.Item value="code">
        <Accordion.Control>View code</Accordion.Control>
        <Accordion.Panel>
          <Group mb="sm">
            <SegmentedControl
              size="xs"
              aria-label="Language"
              data={[...LANGUAGES]}
              value={language}
              onChange={(value) => {
                const known = LANGUAGES.find((each) => each === value);
                if (known) setLanguage(known);
              }}
            />
            {models.length > 1 && (
              <Select
                size="xs"
                aria-label="Model in the code"
                data={models}
                value={model}
                onChange={setChosen}
                allowDeselect={false}
              />
            )}
          </Group>
          <Code
            label={`Request in ${language}`}
            code={codeOf(language, ORIGIN, chatRequest(setup, model, turns))}
          />
        </Accordion.Panel>
      </Accordion.Item>
    </Accordion>
  );
}
