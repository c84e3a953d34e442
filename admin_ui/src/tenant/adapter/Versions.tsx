/** All versions, the newest first, with what can be done with each. */

import { ActionIcon, Anchor, Menu, Text } from "@mantine/core";
import { IconArchive, IconArrowBackUp, IconBan, IconDots, IconTrash } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { Link } from "react-router";
import { type Column, DataTable } from "../../components/DataTable";
import { formatBytes, formatDate } from "../../components/format";
import { type Adapter, type AdapterVersion, grouped } from "../adapters/model";
import { StateBadge, TierBadge } from "../adapters/StateBadge";
import { useMayUpload } from "../upload/context";
import { ChangeModal } from "./ChangeModal";
import { reportPath } from "./paths";
import type { Change } from "./queries";

export function Versions({ adapter }: { adapter: Adapter }) {
  const mayChange = useMayUpload();
  const [change, setChange] = useState<Change | null>(null);
  const columns = useMemo(
    () => columnsOf(adapter.name, mayChange, setChange),
    [adapter.name, mayChange],
  );
  return (
    <section aria-labelledby="versions">
      <Text component="h2" id="versions" fw={650} mb="xs">
        Versions
      </Text>
      <DataTable
        label="Versions"
        columns={columns}
        rows={adapter.versions}
        rowKey={({ id }) => id}
        total={adapter.versions.length}
        rowHeight={52}
        minWidth={820}
        maxHeight={520}
      />
      <ChangeModal adapter={adapter} change={change} onClose={() => setChange(null)} />
    </section>
  );
}

function columnsOf(
  name: string,
  mayChange: boolean,
  onChange: (change: Change) => void,
): Column<AdapterVersion>[] {
  const columns: Column<AdapterVersion>[] = [
    {
      key: "version",
      header: "Version",
      cell: ({ version, created_at }) => (
        <>
          <Anchor component={Link} to={reportPath(name, version)}>
            Version {version}
          </Anchor>
          <Text size="xs" c="dimmed">
            {formatDate(created_at)}
          </Text>
        </>
      ),
    },
    { key: "state", header: "Status", cell: (version) => <State version={version} /> },
    {
      key: "where",
      header: "Location",
      cell: ({ residency }) => <TierBadge tier={residency ?? null} />,
    },
    { key: "rank", header: "Rank", align: "right", cell: ({ rank }) => rank ?? "–" },
    {
      key: "size",
      header: "Size",
      align: "right",
      cell: ({ bytes }) => <span className="numbers">{formatBytes(bytes)}</span>,
    },
    {
      key: "template",
      header: "Chat template",
      cell: ({ has_chat_template }) => (has_chat_template ? "own" : "base model's"),
    },
    {
      key: "drafts",
      header: "Draft layer",
      cell: ({ draft_layer }) => (draft_layer ? formatBytes(draft_layer.bytes) : "none"),
    },
  ];
  if (mayChange)
    columns.push({
      key: "actions",
      header: "Actions",
      align: "right",
      width: 80,
      cell: (version) => <Actions version={version} onChange={onChange} />,
    });
  return columns;
}

function State({ version: { state, validation } }: { version: AdapterVersion }) {
  const reasons = state === "rejected" ? grouped(validation?.problems ?? []) : [];
  const [first] = reasons;
  return (
    <>
      <StateBadge state={state} />
      {first && (
        <Text size="xs" c="dimmed" lineClamp={1} maw={320} title={first.message}>
          {first.message}
          {reasons.length > 1 && ` (and ${reasons.length - 1} more)`}
        </Text>
      )}
    </>
  );
}

interface ActionsProps {
  version: AdapterVersion;
  onChange: (change: Change) => void;
}

function Actions({ version: { name, version, state }, onChange }: ActionsProps) {
  if (state === "revoked") return null;
  const serves = state === "active" || state === "deprecated";
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" aria-label={`Actions for ${name}@${version}`}>
          <IconDots size={18} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        {state === "active" && (
          <Menu.Item
            leftSection={<IconArchive size={16} />}
            onClick={() => onChange({ kind: "deprecated", version })}
          >
            Deprecate
          </Menu.Item>
        )}
        {state === "deprecated" && (
          <Menu.Item
            leftSection={<IconArrowBackUp size={16} />}
            onClick={() => onChange({ kind: "active", version })}
          >
            Reinstate
          </Menu.Item>
        )}
        {serves && (
          <Menu.Item
            leftSection={<IconBan size={16} />}
            onClick={() => onChange({ kind: "revoked", version })}
          >
            Revoke on all servers
          </Menu.Item>
        )}
        <Menu.Item
          color="red"
          leftSection={<IconTrash size={16} />}
          onClick={() => onChange({ kind: "delete", version })}
        >
          Delete
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
