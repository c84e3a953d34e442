/** What the adapter's name runs on at this moment; a later upload that does not serve is a footnote. */

import { Alert, Anchor, Box, Group, Progress, SimpleGrid, Stack, Text } from "@mantine/core";
import { IconAlertTriangle } from "@tabler/icons-react";
import { Link } from "react-router";
import { Copyable } from "../../components/Copyable";
import { formatBytes, shortDigest } from "../../components/format";
import { Panel } from "../../components/Panel";
import { type Adapter, type AdapterVersion, isPending, notServing } from "../adapters/model";
import { StateBadge, TierBadge } from "../adapters/StateBadge";
import { ValidationSteps } from "../upload/ValidationSteps";
import { reportPath } from "./paths";

export function ServesNow({ adapter }: { adapter: Adapter }) {
  const { name, serving } = adapter;
  const how = serving.alias === null ? "the newest active version" : `alias ${serving.alias}`;
  return (
    <Panel
      title="Currently serving"
      note={serving.versions.length > 0 ? `Used for requests to ${name}: ${how}` : undefined}
    >
      {serving.versions.length === 0 ? (
        <Nothing adapter={adapter} />
      ) : (
        <Stack gap="sm">
          {serving.versions.map((served) => (
            <SimpleGrid key={served.version} cols={{ base: 2, sm: 5 }} spacing="sm">
              <div>
                <Group gap="xs">
                  <Anchor component={Link} to={reportPath(name, served.version)} fw={600}>
                    Version {served.version}
                  </Anchor>
                  <StateBadge state={served.state} />
                </Group>
                {serving.versions.length > 1 && (
                  <Group gap="xs" wrap="nowrap" mt={4}>
                    <Progress
                      value={served.weight}
                      flex={1}
                      aria-label={`Share of version ${served.version}`}
                    />
                    <Text size="xs" className="numbers">
                      {served.weight} %
                    </Text>
                  </Group>
                )}
              </div>
              <Fact label="Location">
                <TierBadge tier={served.residency} />
              </Fact>
              <Fact label="Rank">{served.rank ?? "–"}</Fact>
              <Fact label="Size">{formatBytes(served.bytes)}</Fact>
              <Fact label="Digest">
                {served.digest && (
                  <Copyable
                    value={served.digest}
                    shown={shortDigest(served.digest)}
                    label="digest"
                  />
                )}
              </Fact>
            </SimpleGrid>
          ))}
          {notServing(adapter).map((version) => (
            <Footnote key={version.version} version={version} />
          ))}
          <NoEffect adapter={adapter} />
        </Stack>
      )}
    </Panel>
  );
}

function Fact({ label, children }: { label: string; children: React.ReactNode }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {label}
      </Text>
      <Box fz="sm" className="numbers">
        {children}
      </Box>
    </div>
  );
}

function Footnote({ version }: { version: AdapterVersion }) {
  const { name, version: number, state } = version;
  return (
    <Group gap="xs" align="flex-start">
      <Text size="sm" c="dimmed">
        Version {number}{" "}
        {state === "rejected"
          ? "was rejected. This does not affect the serving version."
          : "is being checked."}
      </Text>
      {isPending(state) ? (
        <ValidationSteps state={state} />
      ) : (
        <Anchor component={Link} size="sm" to={reportPath(name, number)}>
          Why version {number} was rejected
        </Anchor>
      )}
    </Group>
  );
}

/** A rejected version or a revoked one can not be reinstated. */
function waysOut({ versions }: Adapter): string {
  return versions.some(({ state }) => state === "deprecated")
    ? "Upload a new version or reinstate a deprecated one."
    : "Upload a new version.";
}

function Nothing({ adapter }: { adapter: Adapter }) {
  const waiting = adapter.versions.find(({ state }) => isPending(state));
  if (waiting)
    return (
      <Stack gap="xs">
        <Text size="sm">None yet. Version {waiting.version} is being checked.</Text>
        <ValidationSteps state={waiting.state} />
      </Stack>
    );
  const [newest] = adapter.versions;
  return (
    <Stack gap="xs">
      <Text size="sm">
        None. Requests for {adapter.name} get status 404. {waysOut(adapter)}
      </Text>
      {adapter.serving.alias !== null && (
        <Text size="sm">
          The alias {adapter.serving.alias} points to versions that are no longer available. Point
          it to an active version.
        </Text>
      )}
      {newest?.state === "rejected" && (
        <Anchor component={Link} size="sm" to={reportPath(adapter.name, newest.version)}>
          Why version {newest.version} was rejected
        </Anchor>
      )}
    </Stack>
  );
}

const NO_EFFECT = ["no_effect", "no_effect_measured"];

/** What answers and changes nothing is worth a loud word. */
function NoEffect({ adapter }: { adapter: Adapter }) {
  const idle = adapter.serving.versions.flatMap(({ version }) => {
    const of = adapter.versions.find((each) => each.version === version);
    const warning = of?.validation?.warnings?.find(({ code }) => NO_EFFECT.includes(code));
    return warning ? [{ version, message: warning.message }] : [];
  });
  return idle.map(({ version, message }) => (
    <Alert
      key={version}
      color="orange"
      icon={<IconAlertTriangle size={18} />}
      title={`Version ${version} has no effect`}
    >
      {message}
    </Alert>
  ));
}
