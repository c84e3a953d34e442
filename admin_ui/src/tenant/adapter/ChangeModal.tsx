import { Stack, Text, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useState } from "react";
import { ConfirmModal } from "../../components/ConfirmModal";
import { counted } from "../../components/format";
import { type Adapter, takesOver } from "../adapters/model";
import { type Change, useChange } from "./queries";

interface ChangeModalProps {
  adapter: Adapter;
  change: Change | null;
  onClose: () => void;
  onDone?: (change: Change) => void;
}

const WORDS: Record<Change["kind"], { verb: string; done: string; what: string }> = {
  delete: {
    verb: "Delete",
    done: "Deleted. Its memory has been freed.",
    what: "Running requests finish. New requests for it get status 404, and aliases skip it. This cannot be undone.",
  },
  revoked: {
    verb: "Revoke",
    done: "Revoked on all servers.",
    what: "Within one second, no server starts new requests on it. Its stored files are deleted. This cannot be undone.",
  },
  deprecated: {
    verb: "Deprecate",
    done: "Deprecated. Its responses now include a warning.",
    what: "Requests that name this version or an alias that points to it still work, and their responses include a warning. Requests for the adapter's name alone no longer use it.",
  },
  active: {
    verb: "Reinstate",
    done: "Reinstated. The version is active again.",
    what: "Requests can use it again, without a warning.",
  },
};

/** Asks before a change of a version, with the reason that the audit log keeps. */
export function ChangeModal({ adapter, change, onClose, onDone }: ChangeModalProps) {
  const { name } = adapter;
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState("");
  const close = () => {
    setReason("");
    setTyped("");
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
  const endsTraffic = change !== null && takesTraffic(adapter, change);
  return (
    <ConfirmModal
      opened={change !== null}
      title={`${words.verb} ${what}?`}
      confirm={words.verb}
      isAllowed={!endsTraffic || typed.trim() === what}
      busy={changing.isPending}
      error={changing.error}
      onConfirm={() => change && changing.mutate({ change, reason })}
      onClose={close}
    >
      <Stack component="span" gap="sm" display="flex">
        <Text component="span" size="sm">
          {words.what}
        </Text>
        {change !== null && <Consequences adapter={adapter} change={change} />}
        {endsTraffic && (
          <TextInput
            label={`Type ${what} to confirm`}
            value={typed}
            autoComplete="off"
            onChange={(event) => setTyped(event.currentTarget.value)}
          />
        )}
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

/** Whether it takes requests away from what serves them now. */
function takesTraffic({ serving }: Adapter, { kind, version }: Change): boolean {
  if (kind !== "delete" && kind !== "revoked") return false;
  if (version === null) return serving.versions.length > 0;
  return serving.versions.some((each) => each.version === version);
}

/** What it does to the requests that come now. */
function Consequences({ adapter, change }: { adapter: Adapter; change: Change }) {
  const { name, traffic } = adapter;
  const { kind, version } = change;
  const next =
    version === null ? null : takesOver(adapter, version, kind === "delete" ? null : kind);
  return (
    <>
      {takesTraffic(adapter, change) && (
        <Text component="span" size="sm" fw={600}>
          {version === null ? name : `Version ${version}`} currently serves requests
          {traffic && `: ${name} had ${counted(traffic.requests, "request")} in the last 24 hours`}.
        </Text>
      )}
      {next !== null && (
        <Text component="span" size="sm" fw={600}>
          Version {next} will then serve 100% of the requests for {name}.
        </Text>
      )}
    </>
  );
}
