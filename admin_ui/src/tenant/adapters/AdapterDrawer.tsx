/** One adapter in full: its versions, how to call them, and what the check said. */

import { Accordion, ActionIcon, Code, Drawer, Group, Stack, Text, Tooltip } from "@mantine/core";
import { IconTrash } from "@tabler/icons-react";
import { Copyable } from "../../components/Copyable";
import { formatBytes, formatDate, shortDigest } from "../../components/format";
import type { Adapter, AdapterVersion, DeleteTarget } from "./queries";
import { ReportView } from "./ReportView";
import { StateBadge } from "./StateBadge";

interface AdapterDrawerProps {
  adapter: Adapter | null;
  onClose: () => void;
  onDelete: (target: DeleteTarget) => void;
}

export function AdapterDrawer({ adapter, onClose, onDelete }: AdapterDrawerProps) {
  return (
    <Drawer
      opened={adapter !== null}
      onClose={onClose}
      position="right"
      size="lg"
      title={
        <Text fw={600} size="lg">
          {adapter?.name}
        </Text>
      }
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {adapter && (
        <Stack>
          <Aliases adapter={adapter} />
          <Accordion variant="separated" defaultValue={String(adapter.versions[0]?.version)}>
            {adapter.versions.map((version) => (
              <VersionItem key={version.id} version={version} onDelete={onDelete} />
            ))}
          </Accordion>
        </Stack>
      )}
    </Drawer>
  );
}

function Aliases({ adapter }: { adapter: Adapter }) {
  if (adapter.aliases.length === 0)
    return (
      <Text size="sm" c="dimmed">
        A request for <Code>{adapter.name}</Code> gets the newest active version;{" "}
        <Code>{adapter.name}@1</Code> pins one.
      </Text>
    );
  return (
    <Stack gap={4}>
      {adapter.aliases.map((alias) => (
        <Text size="sm" key={alias.alias}>
          <Code>
            {adapter.name}@{alias.alias}
          </Code>{" "}
          {alias.targets
            .map((target) => `version ${target.version} (${target.weight} %)`)
            .join(", ")}
        </Text>
      ))}
    </Stack>
  );
}

interface VersionItemProps {
  version: AdapterVersion;
  onDelete: (target: DeleteTarget) => void;
}

function VersionItem({ version, onDelete }: VersionItemProps) {
  const name = `${version.name}@${version.version}`;
  return (
    <Accordion.Item value={String(version.version)}>
      <Group wrap="nowrap" gap={0}>
        <Accordion.Control>
          <Group gap="sm">
            <Text fw={550}>Version {version.version}</Text>
            <StateBadge state={version.state} />
            <Text size="sm" c="dimmed">
              {formatDate(version.created_at)}
            </Text>
          </Group>
        </Accordion.Control>
        <Tooltip label="Delete this version">
          <ActionIcon
            variant="subtle"
            color="red"
            mr="sm"
            aria-label={`Delete ${name}`}
            onClick={() => onDelete({ name: version.name, version: version.version })}
          >
            <IconTrash size={16} />
          </ActionIcon>
        </Tooltip>
      </Group>
      <Accordion.Panel>
        <Stack>
          <Group gap="lg">
            <Fact label="Call it">
              <Copyable value={name} label="model name" />
            </Fact>
            <Fact label="Size">{formatBytes(version.bytes)}</Fact>
            {version.rank !== null && <Fact label="Rank">{version.rank}</Fact>}
            {version.digest && (
              <Fact label="Digest">
                <Copyable
                  value={version.digest}
                  shown={shortDigest(version.digest)}
                  label="digest"
                />
              </Fact>
            )}
          </Group>
          {version.validation && <ReportView report={version.validation} />}
        </Stack>
      </Accordion.Panel>
    </Accordion.Item>
  );
}

function Fact({ label, children }: { label: string; children: React.ReactNode }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {label}
      </Text>
      <Text size="sm" component="div">
        {children}
      </Text>
    </div>
  );
}
