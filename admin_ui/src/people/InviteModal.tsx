/** Makes a link by which one person joins; it is shown once. */

import { Button, Group, NativeSelect, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { OnceModal } from "../components/OnceModal";
import { ErrorState } from "../components/states";
import { rolesOf, type Whose } from "./model";
import { useInvite } from "./queries";

interface InviteModalProps {
  whose: Whose;
  /** The role that is chosen first. */
  role?: string;
  title?: string;
  opened: boolean;
  onClose: () => void;
}

export function InviteModal({ opened, ...props }: InviteModalProps) {
  return opened ? <Invite {...props} /> : null;
}

function Invite({ whose, role: first, title, onClose }: Omit<InviteModalProps, "opened">) {
  const roles = Object.entries(rolesOf(whose));
  const [role, setRole] = useState(first ?? roles[1]?.[0] ?? "");
  const [email, setEmail] = useState("");
  const invite = useInvite(whose);
  const link = invite.data && {
    label: "Link",
    value: invite.data.link,
    note: "Copy the link now. It is shown only once, is valid for one week and can be used by one person.",
  };
  return (
    <OnceModal
      opened
      title={title ?? "Invite person"}
      size="md"
      once={link ?? null}
      onClose={onClose}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          invite.mutate({ role, email: email.trim() || null });
        }}
      >
        <Stack>
          <NativeSelect
            label="Role"
            value={role}
            data={roles.map(([value, does]) => ({ value, label: `${value}: ${does}` }))}
            onChange={(event) => setRole(event.currentTarget.value)}
          />
          <TextInput
            label="Email"
            description="Only a person who signs in with this address can join. Leave empty to let anyone with the link join."
            type="email"
            value={email}
            onChange={(event) => setEmail(event.currentTarget.value)}
          />
          {invite.error ? <ErrorState error={invite.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={invite.isPending}>
              Create link
            </Button>
          </Group>
        </Stack>
      </form>
    </OnceModal>
  );
}
