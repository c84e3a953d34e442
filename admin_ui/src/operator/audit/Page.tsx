/** The audit log of everybody, its proof and its export. */

import { Button, Group } from "@mantine/core";
import { IconDownload, IconShieldCheck } from "@tabler/icons-react";
import { AuditList } from "../../audit/AuditList";
import { useVerification } from "../../audit/queries";
import { PageHeader } from "../../components/PageHeader";
import { Verification } from "./Verification";

export default function Page() {
  const verification = useVerification();
  return (
    <>
      <PageHeader
        title="Audit log"
        description="What was done, by whom, from where, to what. Each entry is hashed onto the one before it, with a key that the database does not have."
        action={
          <Group gap="xs">
            <Button
              variant="default"
              component="a"
              href="/admin/v1/audit_logs/export"
              download="audit_log.jsonl"
              leftSection={<IconDownload size={16} />}
            >
              Export all
            </Button>
            <Button
              leftSection={<IconShieldCheck size={16} />}
              loading={verification.isPending}
              onClick={() => verification.mutate()}
            >
              Verify the chains
            </Button>
          </Group>
        }
      />
      <Verification verdict={verification.data} error={verification.error} />
      <AuditList side="operator" />
    </>
  );
}
