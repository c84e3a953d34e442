/** The later steps: the bytes on their way, the check, and what the server decided. */

import { Alert, Button, Group, Loader, Progress, Stack, Text } from "@mantine/core";
import { IconCircleCheck } from "@tabler/icons-react";
import { Link } from "react-router";
import { ErrorState } from "../../components/states";
import { type AdapterVersion, isPending } from "./queries";
import { ReportView } from "./ReportView";

interface ProgressStepProps {
  fraction: number;
  onCancel: () => void;
}

export function ProgressStep({ fraction, onCancel }: ProgressStepProps) {
  const percent = Math.round(fraction * 100);
  return (
    <Stack py="md">
      <Group justify="space-between">
        <Text fw={500}>{percent < 100 ? "Uploading" : "Storing"}</Text>
        <Text c="dimmed" className="numbers">
          {percent} %
        </Text>
      </Group>
      <Progress value={percent} size="lg" aria-label="Upload progress" animated={percent === 100} />
      <Group justify="flex-end">
        <Button variant="default" onClick={onCancel}>
          Cancel
        </Button>
      </Group>
    </Stack>
  );
}

interface ResultStepProps {
  name: string;
  number: number;
  version: AdapterVersion | undefined;
  error: unknown;
  onAgain: () => void;
  onClose: () => void;
}

export function ResultStep({ name, number, version, error, onAgain, onClose }: ResultStepProps) {
  if (error && !version) return <ErrorState error={error} />;
  if (!version || isPending(version.state))
    return (
      <Group py="xl" justify="center" role="status">
        <Loader size="sm" />
        <Text>
          Checking {name}@{number} against the base model
        </Text>
      </Group>
    );
  const active = version.state === "active";
  return (
    <Stack>
      {active ? (
        <Alert color="teal" icon={<IconCircleCheck size={18} />} role="status" title="Active">
          {name}@{number} is ready for requests.
        </Alert>
      ) : (
        <Text role="status">
          {name}@{number} is {version.state}.
        </Text>
      )}
      {version.validation && <ReportView report={version.validation} />}
      <Group justify="flex-end">
        <Button variant="default" onClick={onAgain}>
          Upload another
        </Button>
        {active ? (
          <Button component={Link} to={`/playground?left=${encodeURIComponent(name)}`}>
            Try it in the playground
          </Button>
        ) : (
          <Button onClick={onClose}>Close</Button>
        )}
      </Group>
    </Stack>
  );
}
