/** What the walk along every chain has found. */

import { Alert, List, Text } from "@mantine/core";
import { IconAlertTriangle, IconShieldCheck } from "@tabler/icons-react";
import type { Verdict } from "../../audit/queries";
import { formatClock, formatMs } from "../../components/format";
import { ErrorState } from "../../components/states";

export function Verification({ verdict, error }: { verdict?: Verdict; error: unknown }) {
  if (error) return <ErrorState error={error} title="The chains were not verified" />;
  if (!verdict) return null;
  const when = `Checked at ${formatClock(verdict.at)}, in ${formatMs(verdict.tookMs)}.`;
  if (verdict.valid)
    return (
      <Alert
        mb="md"
        color="teal"
        icon={<IconShieldCheck size={18} />}
        title="Every entry is as it was written"
        role="status"
      >
        <Text size="sm">The audit log's chains and the ledger's hold. {when}</Text>
      </Alert>
    );
  return (
    <Alert
      mb="md"
      color="red"
      icon={<IconAlertTriangle size={18} />}
      title="An entry is not as it was written"
      role="alert"
    >
      <List size="sm">
        {verdict.problems.map((problem) => (
          <List.Item key={problem}>{problem}</List.Item>
        ))}
      </List>
      <Text size="sm" mt="xs">
        {when} Compare with an export from before, and look who could write to the database.
      </Text>
    </Alert>
  );
}
