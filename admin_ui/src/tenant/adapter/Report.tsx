/** The second tab: what one version is and does, as far as the server has found out. */

import { Alert, Group, Loader, Select, Stack, Text } from "@mantine/core";
import { IconAlertTriangle, IconCircleX } from "@tabler/icons-react";
import type { Schemas } from "../../api/client";
import { Copyable } from "../../components/Copyable";
import { counted, formatBytes, formatDate } from "../../components/format";
import { Panel } from "../../components/Panel";
import { useParam } from "../../components/SidePanel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { type AdapterVersion, grouped, isPending, type Tier } from "../adapters/model";
import { StateBadge, TierBadge } from "../adapters/StateBadge";
import { useVersion } from "../upload/queries";
import { ValidationSteps } from "../upload/ValidationSteps";
import { Facts, Takes } from "./Facts";
import { largestKl, shownVersion } from "./model";
import { Picture } from "./Picture";
import { Problems } from "./Problems";
import { useReport } from "./queries";
import { Samples } from "./Samples";
import type { TabProps } from "./tabs";

export default function Report({ adapter }: TabProps) {
  const [asked, setAsked] = useParam("version");
  const number = shownVersion(adapter, asked);
  const version = useVersion(adapter.name, number);
  const report = useReport(adapter.name, number);
  return (
    <Stack>
      <Group gap="md" align="flex-end">
        <Select
          label="Version"
          w={240}
          allowDeselect={false}
          value={String(number)}
          onChange={setAsked}
          data={adapter.versions.map((each) => ({
            value: String(each.version),
            label: `Version ${each.version}, ${each.state}`,
          }))}
        />
        {version.data && (
          <Summary
            version={version.data}
            tier={adapter.versions.find((each) => each.version === number)?.residency ?? null}
          />
        )}
      </Group>
      {version.isPending && <TableSkeleton />}
      {version.error && !version.data && (
        <ErrorState error={version.error} onRetry={() => version.refetch()} />
      )}
      {version.data && <Verdict version={version.data} />}
      {version.data && isPending(version.data.state) && (
        <Panel title="Checking this version">
          <ValidationSteps state={version.data.state} />
        </Panel>
      )}
      {report.error && !report.data && (
        <ErrorState error={report.error} onRetry={() => report.refetch()} />
      )}
      {version.data?.validation?.facts && report.data && (
        <Found version={version.data} report={report.data} />
      )}
    </Stack>
  );
}

function Summary({ version, tier }: { version: AdapterVersion; tier: Tier | null }) {
  const { name, version: number, state, bytes, digest, created_at } = version;
  const isUsable = state === "active" || state === "deprecated";
  return (
    <Group gap="md" pb={6}>
      <StateBadge state={state} />
      {tier && <TierBadge tier={tier} />}
      {isUsable && <Copyable value={`${name}@${number}`} label="model name" />}
      <Text size="sm" c="dimmed" className="numbers">
        {formatBytes(bytes)}, uploaded {formatDate(created_at)}
      </Text>
      {digest && <Copyable value={digest} shown={digest.slice(7, 19)} label="digest" />}
    </Group>
  );
}

const LOUD = ["no_effect", "no_effect_measured"];

/** Rejections and warnings; that a version changes nothing is said the loudest. */
function Verdict({ version: { validation } }: { version: AdapterVersion }) {
  if (!validation) return null;
  const { problems } = validation;
  const warnings = validation.warnings ?? [];
  const loud = warnings.filter(({ code }) => LOUD.includes(code));
  const others = warnings.filter(({ code }) => !LOUD.includes(code));
  const kinds = grouped(problems).length;
  return (
    <>
      {problems.length > 0 && (
        <Alert
          color="red"
          icon={<IconCircleX size={18} />}
          title={`Rejected: ${counted(kinds, "problem")} found`}
        >
          <Problems problems={problems} label="Reasons for the rejection" />
        </Alert>
      )}
      {loud.length > 0 && (
        <Alert
          color="orange"
          variant="filled"
          autoContrast
          icon={<IconAlertTriangle size={18} />}
          title="This version has no effect"
          role="alert"
        >
          {loud.map(({ code, message }) => (
            <Text key={code} size="sm" inherit>
              {message}
            </Text>
          ))}
        </Alert>
      )}
      {others.length > 0 && (
        <Alert color="yellow" icon={<IconAlertTriangle size={18} />} title="Accepted with warnings">
          <Problems problems={others} label="Warnings" />
        </Alert>
      )}
    </>
  );
}

interface FoundProps {
  version: AdapterVersion;
  report: Schemas["AdapterReport"];
}

function Found({ version, report }: FoundProps) {
  const { findings, picture } = report;
  const label = `${version.name}@${version.version}`;
  return (
    <>
      <Takes version={version} report={report} />
      {picture && (
        <Panel title="Size of the update" note="By module and layer, as Frobenius norms">
          <Picture of={picture} />
        </Panel>
      )}
      <Panel
        title="Responses compared with the base model"
        note={
          findings
            ? `${findings.source === "tenant" ? "Your own prompts" : "Standard prompts"}, greedy decoding; KL divergence from the base model: at least ${largestKl(findings.samples).toPrecision(2)} nats`
            : undefined
        }
      >
        {findings ? (
          <Samples findings={findings} name={label} />
        ) : (
          <NotAsked probe={report.probe} error={report.probe_error} />
        )}
      </Panel>
      {version.validation?.facts && <Facts facts={version.validation.facts} />}
    </>
  );
}

function NotAsked({ probe, error }: { probe: string; error: string | null }) {
  if (probe === "waiting")
    return (
      <Group gap="xs" role="status">
        <Loader size="xs" />
        <Text size="sm">The comparison with the base model is running at the lowest priority.</Text>
      </Group>
    );
  return (
    <Text size="sm" c="dimmed">
      {probe === "failed"
        ? `The comparison failed: ${error ?? "the server gave no reason"}`
        : "This version was not compared with the base model."}
    </Text>
  );
}
