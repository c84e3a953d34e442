/** The tenant's own part of the audit log, and its export. */

import { Button, Stack, Text } from "@mantine/core";
import { IconDownload } from "@tabler/icons-react";
import { describe } from "../../api/errors";
import { AuditList } from "../../audit/AuditList";
import { useOwnExport } from "../../audit/queries";
import { PageHeader } from "../../components/PageHeader";

export default function Page() {
  return (
    <>
      <PageHeader
        title="Audit log"
        description="All changes to this account's API keys, adapters, people and settings, including changes by the operator, with actor and IP address. Entries cannot be edited."
        action={<ExportButton />}
      />
      <AuditList side="own" />
    </>
  );
}

function ExportButton() {
  const file = useOwnExport();
  return (
    <Stack gap={4} align="flex-end">
      <Button
        variant="default"
        leftSection={<IconDownload size={16} />}
        loading={file.isPending}
        onClick={() => file.mutate()}
      >
        Export all
      </Button>
      {file.error && (
        <Text size="xs" c="red" role="alert">
          {describe(file.error)}
        </Text>
      )}
    </Stack>
  );
}
