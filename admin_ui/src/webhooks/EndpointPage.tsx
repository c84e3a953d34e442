/** One endpoint: what it is sent, what became of each event, and its dead letters. */

import { Badge, Button, Group, Menu, Modal, SegmentedControl, Stack, Text } from "@mantine/core";
import { IconDots } from "@tabler/icons-react";
import { useState } from "react";
import { useNavigate, useParams } from "react-router";
import { ConfirmModal } from "../components/ConfirmModal";
import { useFocusBack } from "../components/focus";
import { formatDate } from "../components/format";
import { OnceModal } from "../components/OnceModal";
import { PageHeader } from "../components/PageHeader";
import { ErrorState, TableSkeleton } from "../components/states";
import { Deliveries } from "./Deliveries";
import { EndpointForm } from "./EndpointForm";
import { secretOf } from "./EndpointsPage";
import { bodyOf, type Endpoint, fieldsOf, type Side, typeWords } from "./model";
import {
  type NewEndpoint,
  useChangeEndpoint,
  useDeleteEndpoint,
  useEndpoint,
  useRotateSecret,
} from "./queries";

interface EndpointPageProps {
  side: Side;
  base: string;
  /** The parameter of the route that holds the endpoint's id. */
  param: string;
  mayChange: boolean;
}

export function EndpointPage({ side, base, param, mayChange }: EndpointPageProps) {
  const id = useParams()[param] ?? "";
  const endpoint = useEndpoint(side, id);
  const { data } = endpoint;
  return (
    <>
      <PageHeader
        title={data === undefined ? "Endpoint" : hostOf(data.url)}
        back={{ to: base, label: "Webhooks" }}
        beside={
          data && (
            <Badge color={data.enabled ? "teal" : "gray"}>
              {data.enabled ? "enabled" : "disabled"}
            </Badge>
          )
        }
        description={data && <About endpoint={data} />}
        action={data && mayChange && <Actions side={side} base={base} endpoint={data} />}
      />
      {endpoint.isPending && <TableSkeleton />}
      {endpoint.error && !data && (
        <ErrorState error={endpoint.error} onRetry={() => endpoint.refetch()} />
      )}
      {data && <Deliveries side={side} endpoint={data} mayChange={mayChange} />}
    </>
  );
}

function hostOf(url: string): string {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}

function About({ endpoint }: { endpoint: Endpoint }) {
  return (
    <>
      {endpoint.description && <>{endpoint.description}. </>}
      <Text span ff="monospace" size="sm" style={{ overflowWrap: "anywhere" }}>
        {endpoint.url}
      </Text>{" "}
      receives {typeWords(endpoint.types)}.
      {endpoint.disabled_reason && <> Disabled: {endpoint.disabled_reason}.</>}
      {endpoint.previous_expires_at && (
        <>
          {" "}
          The previous secret is also used for signing until{" "}
          {formatDate(endpoint.previous_expires_at)}.
        </>
      )}
    </>
  );
}

type Action = "change" | "rotate" | "delete";

function Actions({ side, base, endpoint }: { side: Side; base: string; endpoint: Endpoint }) {
  const [action, setAction] = useState<Action | null>(null);
  const enable = useChangeEndpoint(side, endpoint.id);
  const close = () => setAction(null);
  const dialog = { side, endpoint, onClose: close };
  return (
    <>
      <Group gap="xs">
        <Button
          variant="default"
          loading={enable.isPending}
          onClick={() => enable.mutate({ enabled: !endpoint.enabled })}
        >
          {endpoint.enabled ? "Disable" : "Enable"}
        </Button>
        <Menu position="bottom-end">
          <Menu.Target>
            <Button variant="default" rightSection={<IconDots size={16} />}>
              More
            </Button>
          </Menu.Target>
          <Menu.Dropdown>
            <Menu.Item onClick={() => setAction("change")}>Edit</Menu.Item>
            <Menu.Item onClick={() => setAction("rotate")}>Rotate secret</Menu.Item>
            <Menu.Item color="red" onClick={() => setAction("delete")}>
              Delete
            </Menu.Item>
          </Menu.Dropdown>
        </Menu>
      </Group>
      {enable.error ? <ErrorState error={enable.error} /> : null}
      {action === "change" && <ChangeEndpoint {...dialog} />}
      {action === "rotate" && <RotateSecret {...dialog} />}
      {action === "delete" && <DeleteEndpoint {...dialog} base={base} />}
    </>
  );
}

interface DialogProps {
  side: Side;
  endpoint: Endpoint;
  onClose: () => void;
}

function ChangeEndpoint({ side, endpoint, onClose }: DialogProps) {
  const change = useChangeEndpoint(side, endpoint.id, onClose);
  useFocusBack();
  return (
    <Modal
      opened
      onClose={onClose}
      size="lg"
      title={<Text fw={600}>Edit endpoint</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <EndpointForm
        start={fieldsOf(endpoint)}
        submitLabel="Save"
        busy={change.isPending}
        error={change.error}
        onSubmit={(fields) => change.mutate(bodyOf(fields))}
        onCancel={onClose}
      />
    </Modal>
  );
}

const OVERLAPS = [
  { value: "0", label: "Immediately" },
  { value: "3600", label: "In 1 hour" },
  { value: "86400", label: "In 1 day" },
];

function RotateSecret({ side, endpoint, onClose }: DialogProps) {
  const [overlap, setOverlap] = useState("86400");
  const [made, setMade] = useState<NewEndpoint | null>(null);
  const rotate = useRotateSecret(side, endpoint.id, setMade);
  return (
    <OnceModal opened title="Rotate signing secret" once={secretOf(made)} onClose={onClose}>
      <Stack>
        <Text size="sm">
          Deliveries carry both signatures until the current secret expires. When should the current
          secret expire?
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
            Rotate secret
          </Button>
        </Group>
      </Stack>
    </OnceModal>
  );
}

function DeleteEndpoint({ side, endpoint, base, onClose }: DialogProps & { base: string }) {
  const navigate = useNavigate();
  const remove = useDeleteEndpoint(side, endpoint.id, () => void navigate(base));
  return (
    <ConfirmModal
      opened
      title="Delete this endpoint?"
      confirm="Delete"
      busy={remove.isPending}
      error={remove.error}
      onConfirm={() => remove.mutate()}
      onClose={onClose}
    >
      No more events are sent to {endpoint.url}, including events that are waiting. This cannot be
      undone.
    </ConfirmModal>
  );
}
