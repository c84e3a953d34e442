/** Makes a link by which one person joins; it is shown once. */

import {
  Alert,
  Button,
  CopyButton,
  Group,
  Modal,
  NativeSelect,
  Stack,
  Text,
  TextInput,
} from "@mantine/core";
import { IconLink } from "@tabler/icons-react";
import { useState } from "react";
import { ErrorState } from "../../components/states";
import { type MemberRole, ROLES, useInvite } from "./queries";

interface InviteModalProps {
  opened: boolean;
  onClose: () => void;
}

export function InviteModal({ opened, onClose }: InviteModalProps) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      closeOnClickOutside={false}
      title={<Text fw={600}>Invite a person</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <Invite onClose={onClose} />
    </Modal>
  );
}

function Invite({ onClose }: { onClose: () => void }) {
  const [role, setRole] = useState<MemberRole>("developer");
  const [email, setEmail] = useState("");
  const invite = useInvite();
  if (invite.data) return <LinkOnce link={invite.data.link} onClose={onClose} />;
  return (
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
          data={Object.entries(ROLES).map(([value, does]) => ({
            value,
            label: `${value}: ${does}`,
          }))}
          onChange={(event) => setRole(event.currentTarget.value as MemberRole)}
        />
        <TextInput
          label="Email"
          description="Only who signs in with it may join; anybody with the link if left empty."
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
            Make the link
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function LinkOnce({ link, onClose }: { link: string; onClose: () => void }) {
  return (
    <Stack>
      <Alert color="yellow" icon={<IconLink size={18} />} title="Send it now">
        This link is shown once. It is good for a week and for one person.
      </Alert>
      <TextInput
        label="Link"
        value={link}
        readOnly
        onFocus={(event) => event.currentTarget.select()}
      />
      <Group justify="flex-end">
        <CopyButton value={link}>
          {({ copied, copy }) => (
            <Button variant="light" onClick={copy}>
              {copied ? "Copied" : "Copy"}
            </Button>
          )}
        </CopyButton>
        <Button onClick={onClose}>Done</Button>
      </Group>
    </Stack>
  );
}
