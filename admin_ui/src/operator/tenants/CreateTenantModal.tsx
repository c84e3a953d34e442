import { Alert, Anchor, Button, Group, Modal, Select, Stack, Text, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { Link } from "react-router";
import { ErrorState } from "../../components/states";
import { usePlanNames } from "../plans/queries";
import { namesakesIn } from "./model";
import { type Tenant, useCreateTenant } from "./queries";

interface CreateTenantModalProps {
  opened: boolean;
  onClose: () => void;
  onCreated: (tenant: Tenant) => void;
}

export function CreateTenantModal({ opened, onClose, onCreated }: CreateTenantModalProps) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      title={<Text fw={600}>Create tenant</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <CreateTenantForm onClose={onClose} onCreated={onCreated} />
    </Modal>
  );
}

/** A name that others have is refused first, and taken when that is what was meant. */
function CreateTenantForm({ onClose, onCreated }: Omit<CreateTenantModalProps, "opened">) {
  const names = usePlanNames();
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState<string | null>(null);
  const plan = chosen ?? (names.includes("standard") ? "standard" : (names[0] ?? null));
  const create = useCreateTenant((tenant) => {
    onClose();
    onCreated(tenant);
  });
  const namesakes = namesakesIn(create.error);
  const make = (if_name_exists: "allow" | "refuse") => {
    if (plan !== null && name.trim() !== "")
      create.mutate({ name: name.trim(), plan, if_name_exists });
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make("refuse");
  };

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput
          label="Name"
          placeholder="Acme"
          maxLength={120}
          value={name}
          onChange={(event) => {
            setName(event.currentTarget.value);
            create.reset();
          }}
          data-autofocus
        />
        <Select
          label="Plan"
          description="Limits, latency targets and prices"
          data={names}
          value={plan}
          onChange={setChosen}
          allowDeselect={false}
        />
        {namesakes.length > 0 ? (
          <Namesakes ids={namesakes} busy={create.isPending} onAnyway={() => make("allow")} />
        ) : (
          create.error && <ErrorState error={create.error} />
        )}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button
            type="submit"
            loading={create.isPending}
            disabled={name.trim() === "" || plan === null || namesakes.length > 0}
          >
            Create
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

interface NamesakesProps {
  ids: readonly string[];
  busy: boolean;
  onAnyway: () => void;
}

function Namesakes({ ids, busy, onAnyway }: NamesakesProps) {
  return (
    <Alert
      color="yellow"
      role="alert"
      title={
        ids.length === 1
          ? "A tenant already has this name"
          : "Several tenants already have this name"
      }
    >
      <Stack gap={6} align="flex-start">
        {ids.map((id) => (
          <Anchor key={id} component={Link} to={`/operator/tenants/${id}`} size="sm" ff="monospace">
            {id}
          </Anchor>
        ))}
        <Text size="sm">
          Tenants with the same name differ only by their ID. Choose another name, or create the
          tenant anyway.
        </Text>
        <Button size="xs" variant="default" loading={busy} onClick={onAnyway}>
          Create anyway
        </Button>
      </Stack>
    </Alert>
  );
}
