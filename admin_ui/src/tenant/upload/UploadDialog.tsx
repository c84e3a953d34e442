/** Choose a folder, see what the server will make of it, and send it: the tray goes on from there. */

import "@mantine/dropzone/styles.css";
import { Alert, Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { Dropzone } from "@mantine/dropzone";
import { useDebouncedValue } from "@mantine/hooks";
import { IconFolderUp } from "@tabler/icons-react";
import { type FormEvent, useState } from "react";
import { useFocusBack } from "../../components/focus";
import { ErrorState } from "../../components/states";
import { CandidatePicker } from "./CandidatePicker";
import { useUploads } from "./context";
import { FolderButton } from "./FolderButton";
import { Forecast, isLater } from "./Forecast";
import {
  type Candidate,
  CONFIG_NAME,
  candidatesIn,
  type Entry,
  entriesOf,
  nothingFound,
  suggestName,
  WEIGHTS_NAME,
} from "./folder";
import { useExisting, useKeepServing, useParcel, usePreflight } from "./queries";
import { WhatServes } from "./WhatServes";

interface UploadDialogProps {
  /** Of another version; "" of a new adapter. */
  name: string;
  onClose: () => void;
}

export default function UploadDialog({ name, onClose }: UploadDialogProps) {
  useFocusBack();
  return (
    <Modal
      opened
      onClose={onClose}
      size="xl"
      title={<Text fw={600}>{name ? `Upload a new version of ${name}` : "Upload adapter"}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <UploadForm fixed={name} onClose={onClose} />
    </Modal>
  );
}

function UploadForm({ fixed, onClose }: { fixed: string; onClose: () => void }) {
  const { desk } = useUploads();
  const [typed, setTyped] = useState(fixed);
  const [candidates, setCandidates] = useState<Candidate[]>([]);
  const [chosen, setChosen] = useState<Candidate | null>(null);
  const [nothing, setNothing] = useState<string | null>(null);
  const name = typed.trim();
  const [asked] = useDebouncedValue(name, 250);
  const parcel = useParcel(chosen);
  const preflight = usePreflight(asked, parcel.data ?? null);
  const existing = useExisting(asked);
  const [keepsInactive, setKeepsInactive] = useState(false);
  const keep = useKeepServing();
  const isAsked = asked === name && !preflight.isFetching;
  const isTaken = isLater(preflight.error) || preflight.data?.accepted === true;
  const isReady = name !== "" && parcel.data != null && isAsked && isTaken;

  async function take(entries: Entry[]) {
    const found = await candidatesIn(entries);
    const first = found.find(({ problem }) => problem === null) ?? found[0] ?? null;
    setCandidates(found);
    setChosen(first);
    setNothing(found.length === 0 ? nothingFound(entries) : null);
    if (name === "" && first !== null) setTyped(suggestName(first.folder));
  }

  async function send(event: FormEvent) {
    event.preventDefault();
    if (!isReady || chosen === null || parcel.data == null) return;
    if (existing !== null && keepsInactive) await keep.mutateAsync(existing);
    void desk.start(name, chosen.folder, parcel.data);
    onClose();
  }

  return (
    <form onSubmit={(event) => void send(event).catch(() => undefined)}>
      <Stack>
        <TextInput
          label="Name"
          description={
            fixed
              ? undefined
              : "Requests use this name as the model. If the name exists, a new version is created"
          }
          placeholder="support-tone"
          value={typed}
          readOnly={fixed !== ""}
          onChange={(event) => setTyped(event.currentTarget.value)}
          data-autofocus
        />
        <FolderDrop onChosen={take} />
        {nothing && (
          <Alert color="red" role="alert" title="No adapter found">
            {nothing}
          </Alert>
        )}
        {candidates.length > 1 && (
          <CandidatePicker candidates={candidates} chosen={chosen} onChoose={setChosen} />
        )}
        {parcel.error && <ErrorState error={parcel.error} title="This folder cannot be uploaded" />}
        {chosen && parcel.data && (
          <Forecast
            of={chosen}
            parcel={parcel.data}
            hasName={name !== ""}
            preflight={preflight.data ?? null}
            error={preflight.error}
            isAsking={preflight.isFetching}
          />
        )}
        {existing && (
          <WhatServes adapter={existing} keeps={keepsInactive} onKeeps={setKeepsInactive} />
        )}
        {keep.error ? <ErrorState error={keep.error} title="The upload was not started" /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Close
          </Button>
          <Button type="submit" disabled={!isReady} loading={keep.isPending}>
            Upload
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function FolderDrop({ onChosen }: { onChosen: (entries: Entry[]) => void }) {
  return (
    <Dropzone
      onDrop={(files) => onChosen(entriesOf(files))}
      useFsAccessApi={false}
      multiple
      activateOnClick={false}
      activateOnKeyboard={false}
      tabIndex={-1}
      inputProps={{ "aria-label": "Adapter files" }}
      p="md"
    >
      <Group justify="space-between" gap="md">
        <Group gap="md" wrap="nowrap">
          <IconFolderUp size={32} stroke={1.5} aria-hidden />
          <div>
            <Text fw={500}>Drop the folder that your trainer saved</Text>
            <Text size="sm" c="dimmed">
              With {CONFIG_NAME} and {WEIGHTS_NAME}, as PEFT saves them
            </Text>
          </div>
        </Group>
        <FolderButton label="Adapter folder" onChosen={onChosen}>
          Choose a folder
        </FolderButton>
      </Group>
    </Dropzone>
  );
}
