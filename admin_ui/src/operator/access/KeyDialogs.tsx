/** The dialogs around one admin key: make, rotate, revoke. */

import {
  Button,
  Group,
  NativeSelect,
  SegmentedControl,
  Stack,
  Text,
  TextInput,
} from "@mantine/core";
import { useState } from "react";
import { ConfirmModal } from "../../components/ConfirmModal";
import { type Once, OnceModal } from "../../components/OnceModal";
import { ErrorState } from "../../components/states";
import { OPERATORS, operatorRole } from "../../people/model";
import { type AdminKey, untilEndOf } from "./model";
import {
  type NewAdminKey,
  useCreateAdminKey,
  useRevokeAdminKey,
  useRotateAdminKey,
} from "./queries";

function secretOf(made: NewAdminKey | null): Once | null {
  return (
    made && {
      label: "Admin key",
      value: made.key,
      note: "Copy the key now. It is shown only once; only its hash is stored.",
    }
  );
}

const FIRST_ROLE = "operator";

export function CreateAdminKey({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<string>(FIRST_ROLE);
  const [until, setUntil] = useState("");
  const [made, setMade] = useState<NewAdminKey | null>(null);
  const create = useCreateAdminKey(setMade);
  return (
    <OnceModal opened title="Create admin key" size="md" once={secretOf(made)} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          create.mutate({
            name: name.trim(),
            role: operatorRole(role),
            expires_at: untilEndOf(until),
          });
        }}
      >
        <Stack>
          <TextInput
            label="Key name"
            description="For example, the person or program that uses it"
            required
            data-autofocus
            value={name}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          <NativeSelect
            label="Role"
            value={role}
            data={Object.entries(OPERATORS).map(([value, does]) => ({
              value,
              label: `${value}: ${does}`,
            }))}
            onChange={(event) => setRole(event.currentTarget.value)}
          />
          <TextInput
            label="Expires at the end of (UTC)"
            type="date"
            value={until}
            onChange={(event) => setUntil(event.currentTarget.value)}
          />
          {create.error ? <ErrorState error={create.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={create.isPending} disabled={name.trim() === ""}>
              Create admin key
            </Button>
          </Group>
        </Stack>
      </form>
    </OnceModal>
  );
}

const OVERLAPS = [
  { value: "0", label: "Immediately" },
  { value: "3600", label: "In 1 hour" },
  { value: "86400", label: "In 1 day" },
];

interface DialogProps {
  adminKey: AdminKey;
  onClose: () => void;
}

export function RotateAdminKey({ adminKey, onClose }: DialogProps) {
  const [overlap, setOverlap] = useState("86400");
  const [made, setMade] = useState<NewAdminKey | null>(null);
  const rotate = useRotateAdminKey(adminKey.id, setMade);
  return (
    <OnceModal opened title={`Rotate ${adminKey.name}`} once={secretOf(made)} onClose={onClose}>
      <Stack>
        <Text size="sm">
          The key gets a new secret and keeps its role. When should the current secret expire? If
          immediately, the admin keys and tenants' API keys that the key created end with it.
        </Text>
        <SegmentedControl
          aria-label="When should the current secret expire?"
          data={OVERLAPS}
          value={overlap}
          onChange={setOverlap}
        />
        {rotate.error ? <ErrorState error={rotate.error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button loading={rotate.isPending} onClick={() => rotate.mutate(Number(overlap))}>
            Rotate
          </Button>
        </Group>
      </Stack>
    </OnceModal>
  );
}

export function RevokeAdminKey({ adminKey, onClose }: DialogProps) {
  const revoke = useRevokeAdminKey(adminKey.id, onClose);
  return (
    <ConfirmModal
      opened
      title={`Revoke ${adminKey.name}?`}
      confirm="Revoke"
      busy={revoke.isPending}
      error={revoke.error}
      onConfirm={() => revoke.mutate()}
      onClose={onClose}
    >
      The key stops working immediately, and so do all admin keys and tenants' API keys that it
      created. Their sessions end, open invitations that they created are withdrawn, and their
      webhooks are disabled. This cannot be undone.
    </ConfirmModal>
  );
}
