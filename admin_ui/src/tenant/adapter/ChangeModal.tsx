import { Stack, Text, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useState } from "react";
import { ConfirmModal } from "../../components/ConfirmModal";
import { type Change, useChange } from "./queries";

interface ChangeModalProps {
  name: string;
  change: Change | null;
  onClose: () => void;
  onDone?: (change: Change) => void;
}

const WORDS: Record<Change["kind"], { verb: string; done: string; what: string }> = {
  delete: {
    verb: "Delete",
    done: "Deleted. Its memory is given back.",
    what: "Requests in flight finish; new ones get 404, and aliases pass over it. This cannot be undone.",
  },
  revoked: {
    verb: "Revoke",
    done: "Revoked everywhere.",
    what: "Nothing new runs on it anywhere, within a second and for ever; its content is given back.",
  },
  deprecated: {
    verb: "Deprecate",
    done: "Deprecated: its answers carry a warning.",
    what: "It goes on serving those who name it or whose alias leads to it; answers carry a warning. A bare name passes over it.",
  },
  active: {
    verb: "Reinstate",
    done: "Active again.",
    what: "It serves as before, without a warning.",
  },
};

/** Asks before a change of a version, with the reason that the audit log keeps. */
export function ChangeModal({ name, change, onClose, onDone }: ChangeModalProps) {
  const [reason, setReason] = useState("");
  const close = () => {
    setReason("");
    changing.reset();
    onClose();
  };
  const changing = useChange(name, (done) => {
    notifications.show({ color: "teal", message: WORDS[done.kind].done });
    close();
    onDone?.(done);
  });
  const words = WORDS[change?.kind ?? "delete"];
  const what = change?.version == null ? name : `${name}@${change.version}`;
  return (
    <ConfirmModal
      opened={change !== null}
      title={`${words.verb} ${what}?`}
      confirm={words.verb}
      busy={changing.isPending}
      error={changing.error}
      onConfirm={() => change && changing.mutate({ change, reason })}
      onClose={close}
    >
      <Stack component="span" gap="sm" display="flex">
        <Text component="span" size="sm">
          {words.what}
        </Text>
        {change?.kind !== "delete" && (
          <TextInput
            label="Reason, for the audit log"
            value={reason}
            maxLength={200}
            onChange={(event) => setReason(event.currentTarget.value)}
          />
        )}
      </Stack>
    </ConfirmModal>
  );
}
