/** The dialogs around one key: make, change, rotate, revoke. */

import { Button, Group, Modal, SegmentedControl, Stack, Text } from "@mantine/core";
import { useState } from "react";
import { useSession } from "../../api/context";
import { ConfirmModal } from "../../components/ConfirmModal";
import { ErrorState } from "../../components/states";
import { KeyForm } from "./KeyForm";
import {
  type NewApiKey,
  type Owner,
  useChangeKey,
  useCreateKey,
  useRevokeKey,
  useRotateKey,
} from "./queries";
import { SecretOnce } from "./SecretOnce";
import {
  type ApiKey,
  changeBody,
  createBody,
  fieldsOf,
  NEW_KEY,
  SCOPES,
  type Scope,
} from "./terms";

/** The scopes that whoever is signed in may give. */
function useScopes(owner: Owner): readonly Scope[] {
  const may = useSession().session?.place?.may;
  return owner === null && may ? SCOPES.filter((scope) => may.includes(scope)) : SCOPES;
}

interface CreateKeyModalProps {
  owner: Owner;
  title: string;
  opened: boolean;
  onClose: () => void;
}

export function CreateKeyModal({ owner, title, opened, onClose }: CreateKeyModalProps) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      closeOnClickOutside={false}
      size="lg"
      title={<Text fw={600}>{title}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <Create owner={owner} onClose={onClose} />
    </Modal>
  );
}

function Create({ owner, onClose }: { owner: Owner; onClose: () => void }) {
  const [made, setMade] = useState<NewApiKey | null>(null);
  const create = useCreateKey(owner, setMade);
  const scopes = useScopes(owner);
  if (made !== null) return <SecretOnce secret={made.key} onClose={onClose} />;
  return (
    <KeyForm
      start={{ ...NEW_KEY, scopes: [...scopes] }}
      scopes={scopes}
      submitLabel="Create key"
      cancelLabel="Not now"
      busy={create.isPending}
      error={create.error}
      onSubmit={(fields) => create.mutate(createBody(fields))}
      onCancel={onClose}
    />
  );
}

interface KeyDialogProps {
  owner: Owner;
  apiKey: ApiKey;
  onClose: () => void;
}

export function ChangeKeyModal({ owner, apiKey, onClose }: KeyDialogProps) {
  const change = useChangeKey(owner, onClose);
  const start = fieldsOf(apiKey);
  const scopes = useScopes(owner);
  return (
    <Modal
      opened
      onClose={onClose}
      size="lg"
      title={<Text fw={600}>Change {apiKey.name}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <KeyForm
        start={start}
        scopes={SCOPES.filter((scope) => scopes.includes(scope) || start.scopes.includes(scope))}
        submitLabel="Save"
        cancelLabel="Cancel"
        busy={change.isPending}
        error={change.error}
        onSubmit={(fields) => change.mutate({ id: apiKey.id, body: changeBody(start, fields) })}
        onCancel={onClose}
      />
    </Modal>
  );
}

const OVERLAPS = [
  { value: "0", label: "At once" },
  { value: "3600", label: "In an hour" },
  { value: "86400", label: "In a day" },
  { value: "604800", label: "In a week" },
];

export function RotateKeyModal({ owner, apiKey, onClose }: KeyDialogProps) {
  const [overlap, setOverlap] = useState("86400");
  const [made, setMade] = useState<NewApiKey | null>(null);
  const rotate = useRotateKey(owner, setMade);
  return (
    <Modal
      opened
      onClose={onClose}
      closeOnClickOutside={false}
      size="lg"
      title={<Text fw={600}>Rotate {apiKey.name}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {made !== null ? (
        <SecretOnce secret={made.key} onClose={onClose} />
      ) : (
        <Stack>
          <Text size="sm">
            It gets a new secret and stays the same key: its limits and its usage go on. When does
            the secret so far end?
          </Text>
          <SegmentedControl
            aria-label="When the old secret ends"
            data={OVERLAPS}
            value={overlap}
            onChange={setOverlap}
          />
          {rotate.error ? <ErrorState error={rotate.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button
              loading={rotate.isPending}
              onClick={() => rotate.mutate({ id: apiKey.id, overlap_s: Number(overlap) })}
            >
              Rotate
            </Button>
          </Group>
        </Stack>
      )}
    </Modal>
  );
}

export function RevokeKeyModal({ owner, apiKey, onClose }: KeyDialogProps) {
  const revoke = useRevokeKey(owner, onClose);
  return (
    <ConfirmModal
      opened
      title={`Revoke ${apiKey.name}?`}
      confirm="Revoke"
      busy={revoke.isPending}
      error={revoke.error}
      onConfirm={() => revoke.mutate(apiKey.id)}
      onClose={onClose}
    >
      Whoever uses it is out at once, and what runs by it ends, billed to there. It cannot be
      undone.
    </ConfirmModal>
  );
}
