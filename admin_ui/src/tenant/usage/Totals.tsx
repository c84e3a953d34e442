import { Alert, SimpleGrid } from "@mantine/core";
import { formatCompact, formatCount, formatMoney } from "../../components/format";
import { Money } from "../../components/Money";
import { Stat } from "../../components/Stat";
import type { Result } from "./model";

/** All of the window together. */
export function Totals({ total }: { total: Result }) {
  const costs = total.costs?.amounts ?? [];
  const unrated = total.costs?.unrated_events ?? 0;
  const tokens = (count: number) => ({ value: formatCompact(count), title: formatCount(count) });
  return (
    <>
      <SimpleGrid cols={{ base: 2, md: 4 }} spacing="sm" mb="md">
        <Stat
          label="Cost"
          value={
            <span data-testid="total-cost">
              {costs.length > 0 ? <Money of={costs} /> : formatMoney("0")}
            </span>
          }
          hint={`${formatCount(total.requests)} ${total.requests === 1 ? "request" : "requests"}`}
        />
        <Stat label="Prompt tokens, uncached" {...tokens(total.uncached_tokens)} />
        <Stat label="Prompt tokens, cached" {...tokens(total.cached_tokens)} />
        <Stat label="Output tokens" {...tokens(total.output_tokens)} />
      </SimpleGrid>
      {unrated > 0 && (
        <Alert color="yellow" title="Some usage has no price yet" mb="md">
          {formatCount(unrated)} sequences are not included in the cost because they have no price
          yet.
        </Alert>
      )}
    </>
  );
}
