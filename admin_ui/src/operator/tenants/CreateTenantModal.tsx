import { Button, Group, Modal, Select, Stack, Text, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { ErrorState } from "../../components/states";
import { type Tenant, useCreateTenant, usePlans } from "./queries";

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
      title={<Text fw={600}>New tenant</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <CreateTenantForm onClose={onClose} onCreated={onCreated} />
    </Modal>
  );
}

function CreateTenantForm({ onClose, onCreated }: Omit<CreateTenantModalProps, "opened">) {
  const plans = usePlans();
  const names = plans.data?.data.map((plan) => plan.name) ?? [];
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState<string | null>(null);
  const plan = chosen ?? names[0] ?? null;
  const create = useCreateTenant((tenant) => {
    onClose();
    onCreated(tenant);
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (plan !== null && name.trim() !== "") create.mutate({ name: name.trim(), plan });
  }

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput
          label="Name"
          placeholder="Acme"
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
          data-autofocus
        />
        <Select
          label="Plan"
          description="Limits, latency targets and prices"
          data={names}
          value={plan}
          onChange={setChosen}
          allowDeselect={false}
          disabled={plans.isPending}
        />
        {(create.error ?? plans.error) ? <ErrorState error={create.error ?? plans.error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button
            type="submit"
            loading={create.isPending}
            disabled={name.trim() === "" || plan === null}
          >
            Create
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
