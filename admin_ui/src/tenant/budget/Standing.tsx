/** How much of the account's budget is spent, and which thresholds that has reached. */

import { Badge, Box, Group, Progress, Stack, Text } from "@mantine/core";
import { formatDate, formatMoney } from "../../components/format";
import { gapOf, LEVEL_COLORS, levelOf, type SetBudget, usedPart } from "./model";

const WORDS = { ok: "within", near: "alert", reached: "used up" } as const;

function standing({ hard, binds }: SetBudget): string {
  if (!hard) return "Alerts only";
  return binds ? "Requests stop at the budget" : "Does not bind";
}

export function Standing({ budget }: { budget: SetBudget }) {
  const level = levelOf(budget);
  const amount = formatMoney(budget.amount, budget.currency);
  const spent = formatMoney(budget.spent, budget.currency);
  const gap = gapOf(budget);
  return (
    <Stack gap="xs" data-testid="account-budget">
      <Group justify="space-between" gap="xs">
        <Group gap="xs">
          <Text size="sm" fw={550}>
            {standing(budget)}
          </Text>
          <Badge color={LEVEL_COLORS[level]}>{WORDS[level]}</Badge>
        </Group>
        <Text size="sm" className="numbers">
          {spent} spent of {amount}
        </Text>
      </Group>
      {gap !== null && <Text size="sm">{gap}</Text>}
      <Progress
        size="lg"
        value={usedPart(budget) * 100}
        color={LEVEL_COLORS[level]}
        aria-label={`${spent} spent of ${amount}`}
      />
      <Box component="ul" m={0} p={0} style={{ listStyle: "none" }} aria-label="Thresholds">
        {budget.thresholds.map((threshold) => {
          const told = budget.alerts.find((each) => each.threshold === threshold);
          return (
            <Text key={threshold} component="li" size="xs" c="dimmed" className="numbers">
              {threshold}%{" "}
              {told
                ? `reached, alert sent ${formatDate(told.reached_at)}`
                : "not reached this month"}
            </Text>
          );
        })}
      </Box>
      <Text size="xs" c="dimmed">
        Month {budget.period} (UTC); starts again {formatDate(budget.resets_at)}
      </Text>
    </Stack>
  );
}
