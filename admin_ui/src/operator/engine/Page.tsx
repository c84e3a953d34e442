/** The engine now: its page pool, what runs and waits, and where the adapters are. */

import { Alert, Badge, Card, Group, SimpleGrid, Stack, Table, Text, Title } from "@mantine/core";
import { IconPlugConnectedX } from "@tabler/icons-react";
import { type Schemas, withErrors } from "../../api/client";
import { useApi } from "../../api/context";
import { Copyable } from "../../components/Copyable";
import {
  formatAgo,
  formatBytes,
  formatCount,
  formatMs,
  shortDigest,
} from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Stat } from "../../components/Stat";
import { ErrorState, TableSkeleton } from "../../components/states";
import classes from "./Page.module.css";
import { PoolMap } from "./PoolMap";
import { KINDS, pagesOf } from "./pages";

const POLL_MS = 1000;

export default function Page() {
  const { hooks } = useApi();
  const { data, error, isPending, refetch } = withErrors(
    hooks.useQuery("get", "/admin/v1/engine", undefined, {
      refetchInterval: POLL_MS,
      refetchIntervalInBackground: false,
    }),
  );
  const replicas = data?.replicas ?? [];
  return (
    <>
      <PageHeader
        title="Engine"
        description="One pool of equal pages holds KV cache and adapters. This view is read anew each second."
        action={
          <Badge color={error ? "red" : "teal"} variant="dot" size="lg">
            {error ? "not answering" : "live"}
          </Badge>
        }
      />
      {isPending && <TableSkeleton rows={6} />}
      {error && <ErrorState error={error} onRetry={() => refetch()} />}
      {data && (
        <Text size="sm" c="dimmed" mb="md">
          {data.model.id}, {data.model.num_layers} layers, {data.model.dtype},{" "}
          {formatBytes(data.model.weight_bytes)} of weights, context of{" "}
          {formatCount(data.model.context_tokens)} tokens
        </Text>
      )}
      {data && replicas.length === 0 && (
        <Alert color="yellow" icon={<IconPlugConnectedX size={18} />} title="No engine is running">
          It may still be loading the base model. This page follows it.
        </Alert>
      )}
      <Stack gap="xl">
        {replicas.map((replica) => (
          <Replica key={replica.id} replica={replica} single={replicas.length === 1} />
        ))}
      </Stack>
    </>
  );
}

function Replica({ replica, single }: { replica: Schemas["ReplicaView"]; single: boolean }) {
  const { pool } = replica;
  return (
    <Stack component="section" aria-label={`Replica ${replica.id}`}>
      {!single && (
        <Title order={2}>
          Replica {replica.id} {!replica.ready && <Badge color="yellow">not ready</Badge>}
        </Title>
      )}
      <SimpleGrid cols={{ base: 2, md: 4 }}>
        <Stat label="Running" value={formatCount(replica.running)} hint="sequences in the batch" />
        <Stat label="Waiting" value={formatCount(replica.waiting)} hint="sequences in the queue" />
        <Stat label="Last step" value={formatMs(replica.last_step_ms)} />
        <Stat
          label="Memory of the process"
          value={formatBytes(replica.resident_bytes)}
          hint={`${formatBytes(pool.total_pages * pool.page_bytes)} of it the page pool`}
        />
      </SimpleGrid>
      <Pool pool={pool} />
      <Residency adapters={replica.adapters} pageBytes={pool.page_bytes} />
      <TenantPages tenants={pool.tenants} queues={replica.queues} />
      <Counters counters={replica.counters} />
    </Stack>
  );
}

function Pool({ pool }: { pool: Schemas["PoolView"] }) {
  const counts = KINDS.map(({ kind, label }) => `${pagesOf(pool, kind)} ${label.toLowerCase()}`);
  return (
    <Card>
      <Group justify="space-between" mb="md">
        <Title order={2}>Page pool</Title>
        <Text size="sm" c="dimmed" className="numbers">
          {formatCount(pool.total_pages)} pages of {formatBytes(pool.page_bytes)}
        </Text>
      </Group>
      <Group gap="xl" mb="md" className={classes.legend}>
        {KINDS.map(({ kind, label, color }) => (
          <Group key={kind} gap={8} wrap="nowrap">
            <span className={classes.swatch} style={{ background: `var(${color})` }} aria-hidden />
            <Text size="sm">{label}</Text>
            <Text size="sm" fw={600} className="numbers" data-testid={`pages-${kind}`}>
              {formatCount(pagesOf(pool, kind))}
            </Text>
          </Group>
        ))}
      </Group>
      <PoolMap map={pool.page_map} label={`Page pool: ${counts.join(", ")}`} />
    </Card>
  );
}

interface TenantPagesProps {
  tenants: Schemas["TenantPages"][];
  queues: Schemas["QueueView"][];
}

function TenantPages({ tenants, queues }: TenantPagesProps) {
  const waiting = new Map(queues.map((queue) => [queue.tenant_id, queue.waiting]));
  return (
    <Card>
      <Title order={2} mb="sm">
        KV pages by tenant
      </Title>
      {tenants.length === 0 ? (
        <Text size="sm" c="dimmed">
          No tenant holds a page. Requests fill them; finished prompts stay as cached KV.
        </Text>
      ) : (
        <Table aria-label="KV pages by tenant" horizontalSpacing="xs" verticalSpacing={6}>
          <Table.Thead>
            <Table.Tr>
              <Table.Th>Tenant</Table.Th>
              <Table.Th ta="right">Live</Table.Th>
              <Table.Th ta="right">Cached</Table.Th>
              <Table.Th ta="right">Waiting</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {tenants.map((tenant) => (
              <Table.Tr key={tenant.namespace}>
                <Table.Td>{tenant.name ?? shortDigest(tenant.namespace)}</Table.Td>
                <Table.Td ta="right">{formatCount(tenant.live_kv)}</Table.Td>
                <Table.Td ta="right">{formatCount(tenant.cached_kv)}</Table.Td>
                <Table.Td ta="right">
                  {formatCount(waiting.get(tenant.tenant_id ?? "") ?? 0)}
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      )}
    </Card>
  );
}

function Counters({ counters }: { counters: Record<string, number> }) {
  return (
    <Card>
      <Title order={2} mb="sm">
        Since it started
      </Title>
      <SimpleGrid cols={{ base: 2, sm: 3, md: 5 }} verticalSpacing="sm">
        {Object.entries(counters).map(([name, value]) => (
          <div key={name}>
            <Text size="xs" c="dimmed">
              {name.replaceAll("_", " ")}
            </Text>
            <Text size="sm" fw={500} className="numbers">
              {name.endsWith("_bytes") ? formatBytes(value) : formatCount(value)}
            </Text>
          </div>
        ))}
      </SimpleGrid>
    </Card>
  );
}

interface ResidencyProps {
  adapters: Schemas["ResidentAdapter"][];
  pageBytes: number;
}

function Residency({ adapters, pageBytes }: ResidencyProps) {
  const nowS = Date.now() / 1000;
  return (
    <Card p={0}>
      <Title order={2} p="lg" pb="xs">
        Adapters on the device
      </Title>
      {adapters.length === 0 ? (
        <Text size="sm" c="dimmed" px="lg" pb="lg">
          None is loaded. The first request for an adapter brings it in.
        </Text>
      ) : (
        <Table.ScrollContainer minWidth={640} type="native">
          <Table aria-label="Adapters on the device">
            <Table.Thead>
              <Table.Tr>
                <Table.Th>Digest</Table.Th>
                <Table.Th>State</Table.Th>
                <Table.Th ta="right">Rank</Table.Th>
                <Table.Th ta="right">Pages</Table.Th>
                <Table.Th ta="right">Size</Table.Th>
                <Table.Th ta="right">In use by</Table.Th>
                <Table.Th ta="right">Last used</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {adapters.map((adapter) => (
                <Table.Tr key={adapter.digest}>
                  <Table.Td>
                    <Copyable
                      value={adapter.digest}
                      shown={shortDigest(adapter.digest)}
                      label="digest"
                    />
                  </Table.Td>
                  <Table.Td>
                    <Badge color={adapter.state === "resident" ? "teal" : "blue"}>
                      {adapter.state}
                    </Badge>
                  </Table.Td>
                  <Table.Td ta="right">{adapter.rank}</Table.Td>
                  <Table.Td ta="right">{formatCount(adapter.pages)}</Table.Td>
                  <Table.Td ta="right">{formatBytes(adapter.pages * pageBytes)}</Table.Td>
                  <Table.Td ta="right">{adapter.references}</Table.Td>
                  <Table.Td ta="right">{formatAgo(adapter.last_used_s, nowS)}</Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </Table.ScrollContainer>
      )}
    </Card>
  );
}
