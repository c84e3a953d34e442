import { Button, Group, Modal, Stack, Text } from "@mantine/core";
import type { ReactNode } from "react";
import { useFocusBack } from "./focus";
import { ErrorState } from "./states";

interface ConfirmModalProps {
  opened: boolean;
  title: string;
  confirm: string;
  children: ReactNode;
  busy: boolean;
  /** Whether what has to be said first was said. */
  isAllowed?: boolean;
  error: unknown;
  onConfirm: () => void;
  onClose: () => void;
}

/** Asks before something that cannot be undone. */
export function ConfirmModal(props: ConfirmModalProps) {
  useFocusBack(props.opened);
  return (
    <Modal
      opened={props.opened}
      onClose={props.onClose}
      title={<Text fw={600}>{props.title}</Text>}
    >
      <Stack>
        <Text size="sm">{props.children}</Text>
        {props.error ? <ErrorState error={props.error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={props.onClose} data-autofocus>
            Cancel
          </Button>
          <Button
            color="red"
            loading={props.busy}
            disabled={props.isAllowed === false}
            onClick={props.onConfirm}
          >
            {props.confirm}
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
