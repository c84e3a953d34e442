/** What a tenant has chosen for itself; the operator sees it and changes nothing of it. */

import { Stack, Text } from "@mantine/core";
import { Panel } from "../../components/Panel";
import { ErrorState, TableSkeleton } from "../../components/states";
import { isSet } from "../../tenant/budget/model";
import { useAccountBudget } from "../../tenant/budget/queries";
import { Standing } from "../../tenant/budget/Standing";
import { Chosen } from "../../tenant/settings/Chosen";
import { useSettings } from "../../tenant/settings/queries";

export function SettingsTab({ tenant }: { tenant: string }) {
  const settings = useSettings(tenant);
  return (
    <Stack>
      <Text size="sm" c="dimmed">
        The tenant chooses these settings itself: its owners and keys with the scope keys can change
        them. The billing profile has a tab of its own.
      </Text>
      <Budget tenant={tenant} />
      {settings.isPending && <TableSkeleton rows={6} />}
      {settings.error && !settings.data && (
        <ErrorState error={settings.error} onRetry={() => settings.refetch()} />
      )}
      {settings.data && <Chosen settings={settings.data} mayChange={false} isOperator />}
    </Stack>
  );
}

function Budget({ tenant }: { tenant: string }) {
  const budget = useAccountBudget(tenant);
  return (
    <Panel title="Account budget">
      {budget.isPending && <TableSkeleton rows={2} />}
      {budget.error && !budget.data && (
        <ErrorState error={budget.error} onRetry={() => budget.refetch()} />
      )}
      {budget.data && isSet(budget.data) && <Standing budget={budget.data} />}
      {budget.data && !isSet(budget.data) && (
        <Text size="sm" c="dimmed">
          The tenant has set no account budget.
        </Text>
      )}
    </Panel>
  );
}
