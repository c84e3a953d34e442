import { Button, Group, Modal, Select, Stack, Switch, Text, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { useFocusBack } from "../../components/focus";
import { ErrorState } from "../../components/states";
import { usePlanNames } from "../plans/queries";
import { type Tenant, useChangeTenant } from "../tenants/queries";

interface EditTenantModalProps {
  tenant: Tenant;
  opened: boolean;
  onClose: () => void;
}

export function EditTenantModal({ tenant, opened, onClose }: EditTenantModalProps) {
  useFocusBack(opened);
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      title={<Text fw={600}>Edit tenant</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <Form tenant={tenant} onClose={onClose} />
    </Modal>
  );
}

function Form({ tenant, onClose }: Omit<EditTenantModalProps, "opened">) {
  const plans = usePlanNames();
  const [name, setName] = useState(tenant.name);
  const [plan, setPlan] = useState(tenant.plan);
  const [group, setGroup] = useState(tenant.trust_group ?? "");
  const [prepaid, setPrepaid] = useState(tenant.prepaid);
  const change = useChangeTenant(onClose);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    change.mutate({
      id: tenant.id,
      ...(name.trim() !== tenant.name && { name: name.trim() }),
      ...(plan !== tenant.plan && { plan }),
      ...(group.trim() !== (tenant.trust_group ?? "") && { trust_group: group.trim() || null }),
      ...(prepaid !== tenant.prepaid && { prepaid }),
    });
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput
          label="Name"
          maxLength={120}
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
          data-autofocus
        />
        <Select
          label="Plan"
          description="The new plan's targets, limits and prices apply from the next request"
          data={[...new Set([plan, ...plans])]}
          value={plan}
          onChange={(next) => next && setPlan(next)}
          allowDeselect={false}
        />
        <TextInput
          label="Trust group"
          description="Tenants in the same group may share cached prompts. Leave empty for none"
          maxLength={120}
          value={group}
          onChange={(event) => setGroup(event.currentTarget.value)}
        />
        <Switch
          label="Prepaid: reject requests when no credit is left"
          checked={prepaid}
          onChange={(event) => setPrepaid(event.currentTarget.checked)}
        />
        {change.error && <ErrorState error={change.error} />}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button type="submit" loading={change.isPending} disabled={name.trim() === ""}>
            Save
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
