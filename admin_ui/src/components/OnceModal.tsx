/** A dialog that may end with something that is shown once, and then is left only on purpose. */

import {
  Alert,
  Button,
  CopyButton,
  Group,
  Modal,
  type ModalProps,
  Stack,
  Text,
  TextInput,
} from "@mantine/core";
import { IconCheck, IconCopy, IconKey } from "@tabler/icons-react";
import { type ReactNode, useEffect, useRef } from "react";
import { useFocusBack } from "./focus";

export interface Once {
  /** What it is: the label of its field. */
  label: string;
  value: string;
  /** What becomes of it if it is not copied. */
  note: ReactNode;
}

interface OnceModalProps {
  opened: boolean;
  title: string;
  /** null: not yet, the children are shown. */
  once: Once | null;
  size?: ModalProps["size"];
  onClose: () => void;
  children: ReactNode;
}

/** While `once` is shown neither Escape nor a click beside it closes the dialog; only Done does. */
export function OnceModal({ opened, title, once, size, onClose, children }: OnceModalProps) {
  useFocusBack();
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      closeOnClickOutside={false}
      closeOnEscape={once === null}
      withCloseButton={once === null}
      size={size ?? "lg"}
      title={<Text fw={600}>{title}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {once === null ? children : <ShownOnce once={once} onClose={onClose} />}
    </Modal>
  );
}

function ShownOnce({ once, onClose }: { once: Once; onClose: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  // A dialog moves the focus when it opens, and this comes later.
  useEffect(() => field.current?.focus(), []);
  return (
    <Stack>
      <Alert color="yellow" icon={<IconKey size={18} />} title="Copy it now" role="status">
        {once.note}
      </Alert>
      <TextInput
        ref={field}
        label={once.label}
        value={once.value}
        readOnly
        data-autofocus
        onFocus={(event) => event.currentTarget.select()}
        styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
      />
      <Group justify="flex-end">
        <CopyButton value={once.value}>
          {({ copied, copy }) => (
            <Button
              variant="light"
              leftSection={copied ? <IconCheck size={16} /> : <IconCopy size={16} />}
              onClick={copy}
            >
              {copied ? "Copied" : "Copy"}
            </Button>
          )}
        </CopyButton>
        <Button onClick={onClose}>Done</Button>
      </Group>
    </Stack>
  );
}
