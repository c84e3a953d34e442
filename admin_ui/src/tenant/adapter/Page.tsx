/** One adapter: what serves, and the tabs about it. */

import { ActionIcon, Badge, Button, Group, Menu, Tabs } from "@mantine/core";
import { IconDots, IconMessages, IconTrash, IconUpload } from "@tabler/icons-react";
import { Suspense, useState } from "react";
import { Link, useLocation, useNavigate, useParams } from "react-router";
import { useSession } from "../../api/context";
import { PageHeader } from "../../components/PageHeader";
import { ErrorState, TableSkeleton } from "../../components/states";
import { type Adapter, standing } from "../adapters/model";
import { useMayUpload, useUploads } from "../upload/context";
import { ChangeModal } from "./ChangeModal";
import { adapterPath } from "./paths";
import { type Change, useAdapter } from "./queries";
import { TABS } from "./tabs";

export default function AdapterPage() {
  const { name = "" } = useParams();
  const path = useLocation().pathname.split("/")[3] ?? "";
  const adapter = useAdapter(name);
  const navigate = useNavigate();
  const tab = TABS.find((each) => each.path === path) ?? TABS[0];
  if (tab === undefined) return null;
  const state = adapter.data && standing(adapter.data);
  return (
    <>
      <PageHeader
        title={tab.title(name)}
        back={{ to: "/adapters", label: "Adapters" }}
        beside={state && <Badge color={state.color}>{state.word}</Badge>}
        action={adapter.data && <Actions adapter={adapter.data} />}
      />
      {adapter.isPending && <TableSkeleton />}
      {adapter.error && !adapter.data && (
        <ErrorState error={adapter.error} onRetry={() => adapter.refetch()} />
      )}
      {adapter.data && (
        <Tabs
          value={tab.path || "overview"}
          onChange={(to) => navigate(adapterPath(name, to === "overview" ? "" : (to ?? "")))}
          keepMounted={false}
        >
          <Tabs.List mb="md" aria-label={`Sections of ${name}`}>
            {TABS.map(({ path: to, label }) => (
              <Tabs.Tab key={to} value={to || "overview"}>
                {label}
              </Tabs.Tab>
            ))}
          </Tabs.List>
          <Tabs.Panel value={tab.path || "overview"}>
            <Suspense fallback={<TableSkeleton />}>
              <tab.tab adapter={adapter.data} />
            </Suspense>
          </Tabs.Panel>
        </Tabs>
      )}
    </>
  );
}

function Actions({ adapter }: { adapter: Adapter }) {
  const { name, serving } = adapter;
  const uploads = useUploads();
  const mayChange = useMayUpload();
  const mayAsk = useSession().session?.place?.may.includes("inference") ?? false;
  const navigate = useNavigate();
  const [change, setChange] = useState<Change | null>(null);
  return (
    <Group gap="xs">
      {mayAsk && serving.versions.length > 0 && (
        <Button
          variant="default"
          component={Link}
          to={`/playground?left=${encodeURIComponent(name)}&right=base`}
          leftSection={<IconMessages size={16} />}
        >
          Try in playground
        </Button>
      )}
      {mayChange && (
        <>
          <Button leftSection={<IconUpload size={16} />} onClick={() => uploads.choose(name)}>
            Upload version
          </Button>
          <Menu position="bottom-end">
            <Menu.Target>
              <ActionIcon variant="default" size={36} aria-label={`More actions for ${name}`}>
                <IconDots size={18} />
              </ActionIcon>
            </Menu.Target>
            <Menu.Dropdown>
              <Menu.Item
                color="red"
                leftSection={<IconTrash size={16} />}
                onClick={() => setChange({ kind: "delete", version: null })}
              >
                Delete adapter
              </Menu.Item>
            </Menu.Dropdown>
          </Menu>
          <ChangeModal
            adapter={adapter}
            change={change}
            onClose={() => setChange(null)}
            onDone={() => navigate("/adapters")}
          />
        </>
      )}
    </Group>
  );
}
