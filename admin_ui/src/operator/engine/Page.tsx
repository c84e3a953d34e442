/** The engine now: what runs and waits, and what it has counted. Its memory has a page of its own. */

import { Alert, Badge, SimpleGrid, Stack, Text, Title, Tooltip } from "@mantine/core";
import { IconPlugConnectedX } from "@tabler/icons-react";
import type { Schemas } from "../../api/client";
import { formatBytes, formatCount, formatMs } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { Panel } from "../../components/Panel";
import { Stat } from "../../components/Stat";
import { ErrorState, TableSkeleton } from "../../components/states";
import { counterGroups } from "./model";
import { useEngine } from "./queries";

export default function Page() {
  const { data, error, isPending, refetch } = useEngine();
  const replicas = data?.replicas ?? [];
  return (
    <>
      <PageHeader
        title="Engine"
        description="Running and waiting sequences, updated every five seconds, and the counters since the engine started."
        action={
          <Badge color={error ? "red" : "teal"} variant="dot" size="lg">
            {error ? "not responding" : "live"}
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
          The engine may still be loading the base model. This page updates automatically.
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
        <Stat
          label="Last step"
          value={formatMs(replica.last_step_ms)}
          hint="duration of one batch step"
        />
        <Stat
          label="Process memory"
          value={formatBytes(replica.resident_bytes)}
          hint={`including ${formatBytes(pool.total_pages * pool.page_bytes)} for the page pool`}
        />
      </SimpleGrid>
      <Counters counters={replica.counters} />
    </Stack>
  );
}

function Counters({ counters }: { counters: Record<string, number> }) {
  return (
    <Panel title="Counters" note="Since the engine started">
      <Stack gap="md">
        {counterGroups(counters).map(({ title, entries }) => (
          <section key={title} aria-label={title}>
            <Text size="sm" fw={550} mb={6}>
              {title}
            </Text>
            <SimpleGrid cols={{ base: 2, sm: 3, md: 5 }} verticalSpacing="xs">
              {entries.map(({ name, label, help, value }) => (
                <div key={name}>
                  <Tooltip label={help} disabled={help === null} multiline w={260}>
                    <Text size="xs" c="dimmed" tabIndex={help === null ? undefined : 0}>
                      {label}
                    </Text>
                  </Tooltip>
                  <Text size="sm" fw={500} className="numbers">
                    {name.endsWith("_bytes") ? formatBytes(value) : formatCount(value)}
                  </Text>
                </div>
              ))}
            </SimpleGrid>
          </section>
        ))}
      </Stack>
    </Panel>
  );
}
