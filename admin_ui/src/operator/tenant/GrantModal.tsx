import {
  Alert,
  Button,
  Group,
  Modal,
  NativeSelect,
  SimpleGrid,
  Stack,
  Text,
  TextInput,
} from "@mantine/core";
import { type FormEvent, useState } from "react";
import { ErrorState } from "../../components/states";
import { useGrant } from "../billing/queries";
import type { Tenant } from "../tenants/queries";
import { type GrantFields, grantBody, grantFault, NEW_GRANT } from "./model";

interface GrantModalProps {
  tenant: Pick<Tenant, "id" | "name" | "prepaid">;
  opened: boolean;
  onClose: () => void;
}

export function GrantModal({ tenant, opened, onClose }: GrantModalProps) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      title={<Text fw={600}>Credit for {tenant.name}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <Form tenant={tenant} onClose={onClose} />
    </Modal>
  );
}

function Form({ tenant, onClose }: Omit<GrantModalProps, "opened">) {
  const [fields, setFields] = useState(NEW_GRANT);
  const [isTried, setTried] = useState(false);
  const grant = useGrant(onClose);
  const fault = grantFault(fields);
  const set = (changes: Partial<GrantFields>) => {
    setFields((before) => ({ ...before, ...changes }));
    grant.reset();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setTried(true);
    if (fault === null) grant.mutate({ tenant: tenant.id, ...grantBody(fields) });
  };
  return (
    <form onSubmit={submit} noValidate>
      <Stack>
        <SimpleGrid cols={2}>
          <TextInput
            label="Amount"
            inputMode="decimal"
            placeholder="25.00"
            value={fields.amount}
            onChange={(event) => set({ amount: event.currentTarget.value.trim() })}
            data-autofocus
          />
          <TextInput
            label="Currency"
            placeholder="currency of the tenant's prices"
            maxLength={3}
            value={fields.currency}
            onChange={(event) => set({ currency: event.currentTarget.value.toUpperCase() })}
          />
          <NativeSelect
            label="Kind"
            value={fields.kind}
            data={[
              { value: "granted", label: "granted" },
              { value: "bought", label: "purchased" },
            ]}
            onChange={(event) => set({ kind: event.currentTarget.value as GrantFields["kind"] })}
          />
          <TextInput
            label="Expires at the end of (UTC)"
            type="date"
            value={fields.until}
            onChange={(event) => set({ until: event.currentTarget.value })}
          />
        </SimpleGrid>
        <TextInput
          label="Note"
          maxLength={500}
          value={fields.note}
          onChange={(event) => set({ note: event.currentTarget.value })}
        />
        {!tenant.prepaid && (
          <Text size="sm" c="dimmed">
            The first credit makes the tenant prepaid: requests are rejected when no credit is left.
            To turn this off, edit the tenant.
          </Text>
        )}
        {isTried && fault && (
          <Alert color="red" role="alert">
            {fault}
          </Alert>
        )}
        {grant.error && <ErrorState error={grant.error} />}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button type="submit" loading={grant.isPending}>
            Grant
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
