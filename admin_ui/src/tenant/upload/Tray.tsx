/** The uploads of this tab, over whatever page is open: how far each is, and what can be done with it. */

import {
  ActionIcon,
  Anchor,
  Box,
  Card,
  Group,
  Progress,
  Stack,
  Text,
  Tooltip,
} from "@mantine/core";
import {
  IconChevronDown,
  IconChevronUp,
  IconPlayerPause,
  IconPlayerPlay,
  IconRefresh,
  IconX,
} from "@tabler/icons-react";
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { Link } from "react-router";
import { describe } from "../../api/errors";
import { formatBytes } from "../../components/format";
import { reportPath } from "../adapter/paths";
import { isPending } from "../adapters/model";
import { useJobs, useUploads } from "./context";
import type { Job } from "./desk";
import { FolderButton } from "./FolderButton";
import { candidatesIn, type Entry, pack } from "./folder";
import { useVersion } from "./queries";
import classes from "./Tray.module.css";
import { ValidationSteps } from "./ValidationSteps";

export default function Tray() {
  const jobs = useJobs();
  const [isFolded, setFolded] = useState(false);
  const sending = jobs.filter(({ version }) => version === null).length;
  return (
    <Card
      component="aside"
      aria-label="Uploads"
      padding="sm"
      className={classes.tray}
      data-testid="uploads"
    >
      <Group justify="space-between" wrap="nowrap">
        <Text fw={600} size="sm">
          {sending > 0 ? `${sending} ${sending === 1 ? "upload" : "uploads"}` : "Uploaded"}
        </Text>
        <ActionIcon
          variant="subtle"
          color="gray"
          aria-expanded={!isFolded}
          aria-label={isFolded ? "Expand uploads" : "Collapse uploads"}
          onClick={() => setFolded(!isFolded)}
        >
          {isFolded ? <IconChevronUp size={16} /> : <IconChevronDown size={16} />}
        </ActionIcon>
      </Group>
      {!isFolded && (
        <Stack gap="md" mt="xs">
          {jobs.map((job) => (
            <section key={job.id} aria-label={`Upload of ${job.name}`}>
              {job.version === null ? <Sending job={job} /> : <Checked job={job} />}
            </section>
          ))}
        </Stack>
      )}
    </Card>
  );
}

function Sending({ job }: { job: Job }) {
  const { desk } = useUploads();
  const percent = Math.floor((100 * job.sentBytes) / Math.max(job.bytes, 1));
  const isMoving = job.phase === "sending" || job.phase === "finishing";
  return (
    <>
      <Heading name={job.name} note={job.folder}>
        {job.phase === "sending" && (
          <Action label={`Pause upload of ${job.name}`} onClick={() => desk.pause(job.id)}>
            <IconPlayerPause size={16} />
          </Action>
        )}
        {job.phase === "paused" && (
          <Action label={`Resume upload of ${job.name}`} onClick={() => void desk.resume(job.id)}>
            <IconPlayerPlay size={16} />
          </Action>
        )}
        {job.phase === "failed" && (
          <Action label={`Retry upload of ${job.name}`} onClick={() => void desk.resume(job.id)}>
            <IconRefresh size={16} />
          </Action>
        )}
        {job.phase !== "finishing" && (
          <Action label={`Cancel upload of ${job.name}`} onClick={() => void desk.cancel(job.id)}>
            <IconX size={16} />
          </Action>
        )}
      </Heading>
      <Progress
        value={percent}
        my={6}
        aria-label={`Upload of ${job.name}`}
        animated={job.phase === "finishing"}
        color={job.phase === "failed" ? "red" : isMoving ? "teal" : "gray"}
      />
      <Text size="xs" c="dimmed" className="numbers" role="status">
        {words(job, percent)}
      </Text>
      {job.phase === "failed" && (
        <Text size="xs" c="red" role="alert">
          {describe(job.error)}
        </Text>
      )}
      {job.phase === "interrupted" && <Again job={job} />}
    </>
  );
}

function words({ phase, sentBytes, bytes, speed }: Job, percent: number): string {
  const far = `${formatBytes(sentBytes)} of ${formatBytes(bytes)} (${percent} %)`;
  switch (phase) {
    case "sending":
      return speed === null || speed <= 0 ? far : `${far}, ${formatBytes(speed)}/s`;
    case "paused":
      return `Paused at ${far}`;
    case "interrupted":
      return `Interrupted at ${far}`;
    case "finishing":
      return "Upload complete. The server is assembling the files.";
    default:
      return `Stopped at ${far}`;
  }
}

/** After a reload: a page may not keep files, so they are chosen again and compared. */
function Again({ job }: { job: Job }) {
  const { desk } = useUploads();
  const [problem, setProblem] = useState<string | null>(null);
  const choose = async (entries: Entry[]) => {
    setProblem(null);
    try {
      for (const candidate of await candidatesIn(entries)) {
        if (candidate.problem !== null) continue;
        const isSent = await desk.resume(job.id, await pack(candidate)).then(
          () => true,
          () => false,
        );
        if (isSent) return;
      }
      setProblem(
        "This is a different adapter: its size, config or header differs from the upload. Choose the same folder, or cancel the upload.",
      );
    } catch (error) {
      setProblem(describe(error));
    }
  };
  return (
    <Stack gap={6} mt={6}>
      <FolderButton size="xs" label={`Choose the folder of ${job.name} again`} onChosen={choose}>
        Choose the folder again to resume
      </FolderButton>
      {problem && (
        <Text size="xs" c="red" role="alert">
          {problem}
        </Text>
      )}
    </Stack>
  );
}

/** Weights are there: what the server makes of them, until it has decided. */
function Checked({ job }: { job: Job }) {
  const { desk } = useUploads();
  const queries = useQueryClient();
  const version = useVersion(job.name, job.version);
  const state = version.data?.state;
  const isDecided = state !== undefined && !isPending(state);
  useEffect(() => {
    if (state === undefined) return;
    void queries.invalidateQueries({ queryKey: ["get", "/v1/adapters"] });
    void queries.invalidateQueries({ queryKey: ["get", "/v1/adapters/{name}"] });
  }, [state, queries]);
  return (
    <>
      <Heading name={`${job.name}@${job.version}`} note={job.folder}>
        <Action label={`Dismiss ${job.name}@${job.version}`} onClick={() => desk.dismiss(job.id)}>
          <IconX size={16} />
        </Action>
      </Heading>
      <Box my={6}>
        <ValidationSteps state={state ?? "quarantined"} />
      </Box>
      {version.error && !version.data && (
        <Text size="xs" c="red" role="alert">
          {describe(version.error)}
        </Text>
      )}
      {isDecided && (
        <Anchor component={Link} size="sm" to={reportPath(job.name, job.version)}>
          {state === "rejected" ? "Show rejection reasons" : "Show report"}
        </Anchor>
      )}
    </>
  );
}

function Heading(props: { name: string; note: string; children: ReactNode }) {
  return (
    <Group justify="space-between" wrap="nowrap" gap="xs">
      <Box miw={0}>
        <Text size="sm" fw={550} truncate>
          {props.name}
        </Text>
        {props.note && (
          <Text size="xs" c="dimmed" truncate>
            {props.note}
          </Text>
        )}
      </Box>
      <Group gap={4} wrap="nowrap">
        {props.children}
      </Group>
    </Group>
  );
}

function Action(props: { label: string; onClick: () => void; children: ReactNode }) {
  return (
    <Tooltip label={props.label}>
      <ActionIcon variant="subtle" color="gray" aria-label={props.label} onClick={props.onClick}>
        {props.children}
      </ActionIcon>
    </Tooltip>
  );
}
