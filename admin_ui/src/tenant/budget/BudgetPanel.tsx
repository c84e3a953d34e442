import { Anchor, Skeleton, Text } from "@mantine/core";
import { Link } from "react-router";
import { Panel } from "../../components/Panel";
import { ErrorState } from "../../components/states";
import { isSet } from "./model";
import { useAccountBudget } from "./queries";
import { Standing } from "./Standing";

/** The account's budget on a page about something else. */
export default function BudgetPanel() {
  const budget = useAccountBudget();
  return (
    <Panel
      title="Account budget"
      action={
        <Anchor component={Link} to="/budget" size="sm">
          {budget.data && !isSet(budget.data) ? "Set a budget" : "Open the budget"}
        </Anchor>
      }
    >
      {budget.isPending && <Skeleton height={21} role="status" aria-label="Loading" />}
      {budget.error && !budget.data && (
        <ErrorState error={budget.error} onRetry={() => budget.refetch()} />
      )}
      {budget.data && isSet(budget.data) && <Standing budget={budget.data} />}
      {budget.data && !isSet(budget.data) && (
        <Text size="sm" c="dimmed">
          No account budget is set. Set one to get an alert before the month costs more than you
          want.
        </Text>
      )}
    </Panel>
  );
}
