/** What the walk along every chain has found. */

import { Alert, List, Text } from "@mantine/core";
import { IconAlertTriangle, IconShieldCheck } from "@tabler/icons-react";
import type { Verdict } from "../../audit/queries";
import { formatClock, formatMs } from "../../components/format";
import { ErrorState } from "../../components/states";

export function Verification({ verdict, error }: { verdict?: Verdict; error: unknown }) {
  if (error) return <ErrorState error={error} title="The hash chains could not be verified" />;
  if (!verdict) return null;
  const when = `Checked at ${formatClock(verdict.at)}, in ${formatMs(verdict.tookMs)}.`;
  if (verdict.valid)
    return (
      <Alert
        mb="md"
        color="teal"
        icon={<IconShieldCheck size={18} />}
        title="No entry was modified"
        role="status"
      >
        <Text size="sm">The hash chains of the audit log and the ledger are valid. {when}</Text>
      </Alert>
    );
  return (
    <Alert
      mb="md"
      color="red"
      icon={<IconAlertTriangle size={18} />}
      title="An entry was modified"
      role="alert"
    >
      <List size="sm">
        {verdict.problems.map((problem) => (
          <List.Item key={problem}>{problem}</List.Item>
        ))}
      </List>
      <Text size="sm" mt="xs">
        {when} Compare it with an earlier export, and check who has write access to the database.
      </Text>
    </Alert>
  );
}
