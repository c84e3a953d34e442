import { ActionIcon, Code, CopyButton, Group, Tooltip } from "@mantine/core";
import { IconCheck, IconCopy } from "@tabler/icons-react";

interface CopyableProps {
  value: string;
  shown?: string;
  label: string;
}

/** A piece of text in monospace that can be copied whole, shown whole or in part. */
export function Copyable({ value, shown = value, label }: CopyableProps) {
  return (
    <Group gap={4} wrap="nowrap">
      <Tooltip label={value} disabled={shown === value}>
        <Code bg="transparent" p={0} fz="sm">
          {shown}
        </Code>
      </Tooltip>
      <CopyButton value={value}>
        {({ copied, copy }) => (
          <ActionIcon
            size="sm"
            variant="subtle"
            color={copied ? "teal" : "gray"}
            onClick={(event) => {
              event.stopPropagation();
              copy();
            }}
            aria-label={copied ? "Copied" : `Copy ${label}`}
          >
            {copied ? <IconCheck size={14} /> : <IconCopy size={14} />}
          </ActionIcon>
        )}
      </CopyButton>
    </Group>
  );
}
