/** One tenant's keys, for the operator. */

import { Modal, Text } from "@mantine/core";
import { KeysTable } from "../../tenant/keys/KeysTable";
import type { Tenant } from "./queries";

interface TenantKeysModalProps {
  tenant: Tenant | null;
  onClose: () => void;
}

export function TenantKeysModal({ tenant, onClose }: TenantKeysModalProps) {
  return (
    <Modal
      opened={tenant !== null}
      onClose={onClose}
      size="xl"
      title={<Text fw={600}>Keys of {tenant?.name}</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {tenant && <KeysTable owner={tenant.id} />}
    </Modal>
  );
}
