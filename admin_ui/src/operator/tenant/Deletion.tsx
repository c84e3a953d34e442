/** Deleting a tenant, and what its page says until it is erased. */

import { Alert, Button, Group, Stack, Text, TextInput } from "@mantine/core";
import { useState } from "react";
import { useIsRole } from "../../api/roles";
import { ConfirmModal } from "../../components/ConfirmModal";
import { formatMoment } from "../../components/format";
import { ErrorState } from "../../components/states";
import { type Tenant, useDeleteTenant, useRestoreTenant } from "../tenants/queries";

interface DeleteTenantModalProps {
  tenant: Tenant;
  opened: boolean;
  onClose: () => void;
}

export function DeleteTenantModal({ tenant, opened, onClose }: DeleteTenantModalProps) {
  const [typed, setTyped] = useState("");
  const close = () => {
    setTyped("");
    deleting.reset();
    onClose();
  };
  const deleting = useDeleteTenant(close);
  return (
    <ConfirmModal
      opened={opened}
      title={`Delete ${tenant.name}?`}
      confirm="Delete"
      isAllowed={typed.trim() === tenant.name}
      busy={deleting.isPending}
      error={deleting.error}
      onConfirm={() => deleting.mutate(tenant.id)}
      onClose={close}
    >
      <Stack component="span" gap="sm" display="flex">
        <Text component="span" size="sm">
          The tenant is suspended now: its keys stop working and running requests end. After the
          grace period its adapters, keys, people and stored content are erased. Usage and invoices
          are kept under a pseudonym. You can restore the tenant until then.
        </Text>
        <TextInput
          label={`Type ${tenant.name} to confirm`}
          value={typed}
          autoComplete="off"
          onChange={(event) => setTyped(event.currentTarget.value)}
        />
      </Stack>
    </ConfirmModal>
  );
}

/** Nothing for a tenant that has not been deleted. */
export function DeletionBanner({ tenant }: { tenant: Tenant }) {
  const mayRestore = useIsRole("operator");
  const restoring = useRestoreTenant();
  const { deleted_at: deleted, erase_after: eraseAfter, erased_at: erased } = tenant;
  if (erased) {
    return (
      <Alert color="gray" mb="md" title="This tenant has been erased">
        Erased {formatMoment(erased)}. Its usage and invoices are kept under this pseudonym.
      </Alert>
    );
  }
  if (!deleted) return null;
  return (
    <Alert color="red" mb="md" title="This tenant is deleted">
      <Group justify="space-between">
        <Text size="sm">
          Deleted {formatMoment(deleted)}.{" "}
          {eraseAfter
            ? `Everything but its usage and invoices is erased after ${formatMoment(eraseAfter)}.`
            : "A backup was restored since: it is not erased until you delete it again (tenora tenant delete)."}
        </Text>
        {mayRestore && (
          <Button
            size="xs"
            variant="default"
            loading={restoring.isPending}
            onClick={() => restoring.mutate(tenant.id)}
          >
            Restore
          </Button>
        )}
      </Group>
      {restoring.error && <ErrorState error={restoring.error} />}
    </Alert>
  );
}
