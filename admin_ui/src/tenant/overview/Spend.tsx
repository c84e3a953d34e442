/** What this month has cost, and what it comes to if days go on so, beside the budget. */

import { Box, Group, SimpleGrid, Stack, Text, Tooltip } from "@mantine/core";
import { formatAmount, formatMoney } from "../../components/format";
import { Panel } from "../../components/Panel";
import { TimeSeries } from "../../components/TimeSeries";
import { COLORS, type CurrencyForecast, daysOf, type Forecast, partOf } from "./model";
import classes from "./Spend.module.css";

export function Spend({ forecast, stale }: { forecast: Forecast; stale: string | null }) {
  const { currencies, budget } = forecast;
  return (
    <Panel
      title="Spend this month"
      note={`${forecast.period}, UTC · before tax, minimums and included usage`}
      stale={stale}
    >
      {currencies.length === 0 && (
        <Text size="sm" c="dimmed">
          No usage this month or last month.
        </Text>
      )}
      <SimpleGrid cols={{ base: 1, md: Math.min(Math.max(currencies.length, 1), 2) }} spacing="xl">
        {currencies.map((each) => (
          <InCurrency key={each.currency} of={each} forecast={forecast} />
        ))}
      </SimpleGrid>
      {budget && <Budget forecast={forecast} />}
    </Panel>
  );
}

function InCurrency({ of, forecast }: { of: CurrencyForecast; forecast: Forecast }) {
  const money = (amount: string) => formatMoney(amount, of.currency);
  const { times, values } = daysOf(forecast, of);
  const series = [{ name: "Cost", color: COLORS[0], values }];
  return (
    <Stack gap="xs">
      <Group gap="xl" align="flex-end">
        <Box>
          <Text className={classes.spent} data-testid={`spent-${of.currency}`}>
            {money(of.spent)}
          </Text>
          <Text size="xs" c="dimmed">
            last month {money(of.spent_last_month)}
          </Text>
        </Box>
        <Tooltip label={forecast.method} multiline w={360}>
          <Box tabIndex={0}>
            <Text fw={600} className="numbers" data-testid={`projected-${of.currency}`}>
              {of.projected === null ? "No forecast yet" : money(of.projected)}
            </Text>
            <Text size="xs" c="dimmed">
              {of.projected === null
                ? "needs at least one full day of use"
                : `forecast for the whole month${
                    of.low !== null && of.high !== null
                      ? `, ${money(of.low)} to ${money(of.high)}`
                      : ""
                  }`}
            </Text>
          </Box>
        </Tooltip>
      </Group>
      {of.days.length > 0 && (
        <TimeSeries
          label={`Cost by day, ${of.currency}`}
          kind="bars"
          isDays
          times={times}
          series={series}
          height={120}
          format={(value) => money(short(value))}
        />
      )}
    </Stack>
  );
}

/** For the axis and the cursor: two digits behind the point, or the first two that there are. */
function short(value: number): string {
  if (value === 0) return "0";
  const places = value >= 1 ? 2 : Math.min(12, 1 - Math.floor(Math.log10(value)));
  return value.toFixed(places);
}

function Budget({ forecast }: { forecast: Forecast }) {
  const { budget, currencies } = forecast;
  if (budget === null) return null;
  const ours = currencies.find((each) => each.currency === budget.currency);
  const spent = ours?.spent ?? "0";
  const projected = ours?.projected ?? spent;
  const money = (amount: string) =>
    budget.currency ? formatMoney(amount, budget.currency) : formatAmount(amount);
  const percent = (part: number) => `${part * 100}%`;
  return (
    <Box mt="md">
      <Box className={classes.bar} aria-hidden>
        <div
          className={classes.projected}
          style={{ width: percent(partOf(projected, budget.amount)) }}
        />
        <div className={classes.used} style={{ width: percent(partOf(spent, budget.amount)) }} />
        {budget.soft && (
          <div
            className={classes.soft}
            style={{ left: percent(partOf(budget.soft, budget.amount)) }}
          />
        )}
      </Box>
      <Text size="xs" c="dimmed" mt={6}>
        Budget {money(budget.amount)} per month
        {budget.soft && `, with a warning at ${money(budget.soft)}`}
        {budget.action === "degrade" ? ", then served in class flex" : ""}.{" "}
        {budget.reached_on
          ? `At this rate, it will be used up on ${budget.reached_on}.`
          : "At this rate, it lasts until the end of the month."}
      </Text>
    </Box>
  );
}
