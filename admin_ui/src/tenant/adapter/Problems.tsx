import { Code, Stack, Text } from "@mantine/core";
import type { Schemas } from "../../api/client";
import { grouped } from "../adapters/model";

interface ProblemsProps {
  problems: readonly Schemas["Problem"][];
  label: string;
}

/** What is wrong, each kind of it once, with where. */
export function Problems({ problems, label }: ProblemsProps) {
  return (
    <Stack component="ul" gap={6} aria-label={label} m={0} pl="md">
      {grouped(problems).map(({ code, message, fields, more }) => (
        <Text
          component="li"
          size="sm"
          key={`${code} ${message}`}
          style={{ overflowWrap: "anywhere" }}
        >
          {fields.map((field, at) => (
            <span key={field}>
              {at > 0 && ", "}
              <Code>{field}</Code>
            </span>
          ))}
          {more > 0 && ` and ${more} more`}: {message}{" "}
          <Text span size="xs" c="dimmed" ff="monospace">
            {code}
          </Text>
        </Text>
      ))}
    </Stack>
  );
}
