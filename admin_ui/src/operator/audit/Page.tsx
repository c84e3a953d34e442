/** The audit log of everybody, its proof and its export. */

import { Button, Group, Progress } from "@mantine/core";
import { IconDownload, IconShieldCheck } from "@tabler/icons-react";
import { useState } from "react";
import { at } from "../../api/base";
import { AuditList } from "../../audit/AuditList";
import { useVerification } from "../../audit/queries";
import { PageHeader } from "../../components/PageHeader";
import { Verification } from "./Verification";

export default function Page() {
  const [part, setPart] = useState<number | null>(null);
  const verification = useVerification(setPart);
  return (
    <>
      <PageHeader
        title="Audit log"
        description="All administrative actions, with actor, target and IP address. Each entry's hash includes the one before it and is made with a key that is not stored in the database."
        action={
          <Group gap="xs">
            <Button
              variant="default"
              component="a"
              href={at("/admin/v1/audit_logs/export")}
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
              Verify hash chains
            </Button>
          </Group>
        }
      />
      {part !== null && <Progress mb="md" value={100 * part} aria-label="Verified" />}
      <Verification verdict={verification.data} error={verification.error} />
      <AuditList side="operator" />
    </>
  );
}
