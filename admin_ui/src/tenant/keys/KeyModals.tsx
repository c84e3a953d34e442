/** The dialogs around one key: make, change, rotate, revoke. */

import { Button, Group, Modal, SegmentedControl, Stack, Text } from "@mantine/core";
import { useState } from "react";
import { useSession } from "../../api/context";
import { ConfirmModal } from "../../components/ConfirmModal";
import { useFocusBack } from "../../components/focus";
import { type Once, OnceModal } from "../../components/OnceModal";
import { ErrorState } from "../../components/states";
import { KeyForm } from "./KeyForm";
import {
  type ApiKey,
  changeBody,
  createBody,
  fieldsOf,
  NEW_KEY,
  SCOPES,
  type Scope,
} from "./model";
import {
  type NewApiKey,
  type Owner,
  useBudgetCurrency,
  useChangeKey,
  useCreateKey,
  useModelNames,
  useRevokeKey,
  useRotateKey,
} from "./queries";

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

/** The dialog stays as it is until it is closed, so a form of the next key begins anew. */
export function CreateKeyModal({ opened, ...props }: CreateKeyModalProps) {
  return opened ? <Create {...props} /> : null;
}

function secretOf(made: NewApiKey | null): Once | null {
  return (
    made && {
      label: "Key",
      value: made.key,
      note: "Copy the key now. It is shown only once; only its hash is stored.",
    }
  );
}

function Create({ owner, title, onClose }: Omit<CreateKeyModalProps, "opened">) {
  const [made, setMade] = useState<NewApiKey | null>(null);
  const create = useCreateKey(owner, setMade);
  const scopes = useScopes(owner);
  return (
    <OnceModal opened title={title} once={secretOf(made)} onClose={onClose}>
      <KeyForm
        start={{ ...NEW_KEY, scopes: [...scopes] }}
        scopes={scopes}
        models={useModelNames(owner)}
        currency={useBudgetCurrency(owner)}
        submitLabel="Create key"
        cancelLabel="Cancel"
        busy={create.isPending}
        error={create.error}
        onSubmit={(fields) => create.mutate(createBody(fields))}
        onCancel={onClose}
      />
    </OnceModal>
  );
}

interface KeyDialogProps {
  owner: Owner;
  apiKey: ApiKey;
  onClose: () => void;
}

export function ChangeKeyModal({ owner, apiKey, onClose }: KeyDialogProps) {
  const change = useChangeKey(owner, onClose);
  useFocusBack();
  const start = fieldsOf(apiKey);
  const scopes = useScopes(owner);
  return (
    <Modal
      opened
      onClose={onClose}
      size="lg"
      title={<Text fw={600}>Edit {apiKey.name}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <KeyForm
        start={start}
        scopes={SCOPES.filter((scope) => scopes.includes(scope) || start.scopes.includes(scope))}
        models={useModelNames(owner)}
        currency={useBudgetCurrency(owner)}
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
  { value: "0", label: "Immediately" },
  { value: "3600", label: "In 1 hour" },
  { value: "86400", label: "In 1 day" },
  { value: "604800", label: "In 1 week" },
];

export function RotateKeyModal({ owner, apiKey, onClose }: KeyDialogProps) {
  const [overlap, setOverlap] = useState("86400");
  const [made, setMade] = useState<NewApiKey | null>(null);
  const rotate = useRotateKey(owner, setMade);
  return (
    <OnceModal opened title={`Rotate ${apiKey.name}`} once={secretOf(made)} onClose={onClose}>
      <Stack>
        <Text size="sm">
          The key gets a new secret and keeps its limits and usage. When should the current secret
          expire?
        </Text>
        <SegmentedControl
          aria-label="When should the current secret expire?"
          data={OVERLAPS}
          value={overlap}
          onChange={setOverlap}
        />
        {overlap === "0" ? (
          <Text size="sm" c="dimmed">
            The keys that it created are revoked as well, and webhooks created with it or them are
            disabled: whoever had the secret may have made them.
          </Text>
        ) : null}
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
    </OnceModal>
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
      The key stops working immediately, and so do all keys that it created. Their running requests
      are stopped and billed up to that point. Webhooks created with them are disabled; enable those
      that are still wanted. This cannot be undone.
    </ConfirmModal>
  );
}
