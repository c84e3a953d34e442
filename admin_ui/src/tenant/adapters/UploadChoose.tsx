/** The first step: the name, the two files, and what they seem to hold. */

import "@mantine/dropzone/styles.css";
import { Alert, Badge, Button, Card, Group, Stack, Text, TextInput } from "@mantine/core";
import { Dropzone } from "@mantine/dropzone";
import { IconAlertTriangle, IconFileCode, IconFolderUp, IconWeight } from "@tabler/icons-react";
import { type FormEvent, type ReactNode, useState } from "react";
import { formatBytes } from "../../components/format";
import { ErrorState } from "../../components/states";
import {
  CONFIG_NAME,
  type Forecast,
  forecast,
  type Picked,
  pickFiles,
  suggestName,
  WEIGHTS_NAME,
} from "./files";

interface ChooseStepProps {
  error: unknown;
  onStart: (name: string, picked: Picked) => void;
}

export function ChooseStep({ error, onStart }: ChooseStepProps) {
  const [name, setName] = useState("");
  const [picked, setPicked] = useState<Picked>({ config: null, weights: null, refused: null });
  const [foreseen, setForeseen] = useState<Forecast | null>(null);
  const ready = name.trim() !== "" && picked.config !== null && picked.weights !== null;

  async function take(files: File[]) {
    const next = pickFiles(files, picked);
    setPicked(next);
    if (name === "") setName(suggestName(files));
    setForeseen(await forecast(next));
  }

  function submit(event: FormEvent) {
    event.preventDefault();
    if (ready) onStart(name.trim(), picked);
  }

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput
          label="Name"
          description="A name that exists gets a new version"
          placeholder="support-tone"
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
          data-autofocus
        />
        <Dropzone
          onDrop={take}
          useFsAccessApi={false}
          multiple
          inputProps={{ "aria-label": "Adapter files" }}
        >
          <Group justify="center" gap="md" mih={96} style={{ pointerEvents: "none" }}>
            <IconFolderUp size={32} stroke={1.5} aria-hidden />
            <div>
              <Text fw={500}>Drop the adapter's folder here, or choose its two files</Text>
              <Text size="sm" c="dimmed">
                {CONFIG_NAME} and {WEIGHTS_NAME}, as PEFT saves them
              </Text>
            </div>
          </Group>
        </Dropzone>
        {picked.refused && <Alert color="red">{picked.refused}</Alert>}
        <FileCards picked={picked} foreseen={foreseen} />
        {foreseen && foreseen.doubts.length > 0 && <Doubts doubts={foreseen.doubts} />}
        {error ? <ErrorState error={error} title="The upload was not accepted" /> : null}
        <Group justify="flex-end">
          <Button type="submit" disabled={!ready}>
            Upload
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function Doubts({ doubts }: { doubts: string[] }) {
  return (
    <Alert
      color="yellow"
      icon={<IconAlertTriangle size={18} />}
      title="This will probably be rejected"
    >
      {doubts.map((doubt) => (
        <Text size="sm" key={doubt}>
          {doubt}
        </Text>
      ))}
    </Alert>
  );
}

function FileCards({ picked, foreseen }: { picked: Picked; foreseen: Forecast | null }) {
  const config = foreseen?.config;
  const weights = foreseen?.weights;
  return (
    <Stack gap="xs">
      <FileCard icon={<IconFileCode size={18} />} file={picked.config} expected={CONFIG_NAME}>
        {config && (
          <>
            {config.rank !== null && <Badge color="gray">r {config.rank}</Badge>}
            {config.alpha !== null && <Badge color="gray">alpha {config.alpha}</Badge>}
          </>
        )}
      </FileCard>
      <FileCard icon={<IconWeight size={18} />} file={picked.weights} expected={WEIGHTS_NAME}>
        {weights && (
          <>
            <Badge color="gray">rank {weights.ranks.join(", ") || "?"}</Badge>
            <Badge color="gray">{weights.modules.length} modules</Badge>
            <Badge color="gray">{weights.layers} layers</Badge>
            <Badge color="gray">{weights.dtypes.join(", ")}</Badge>
          </>
        )}
      </FileCard>
    </Stack>
  );
}

interface FileCardProps {
  icon: ReactNode;
  file: File | null;
  expected: string;
  children: ReactNode;
}

function FileCard({ icon, file, expected, children }: FileCardProps) {
  return (
    <Card padding="sm">
      <Group justify="space-between" gap="xs">
        <Group gap="sm" wrap="nowrap" c={file ? undefined : "dimmed"}>
          {icon}
          <Text size="sm">{file ? file.name : `${expected} is missing`}</Text>
          {file && (
            <Text size="sm" c="dimmed" className="numbers">
              {formatBytes(file.size)}
            </Text>
          )}
        </Group>
        <Group gap={6}>{children}</Group>
      </Group>
    </Card>
  );
}
