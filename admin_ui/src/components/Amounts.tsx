import { Text } from "@mantine/core";
import { type ByCurrency, currenciesOf } from "./decimal";
import { formatMoney } from "./format";

interface AmountsProps {
  of: ByCurrency;
  /** With a sign before what is more than 0. */
  isChange?: boolean;
}

/** Amounts of several currencies beside each other in one line, never added. */
export function Amounts({ of, isChange = false }: AmountsProps) {
  const currencies = currenciesOf(of);
  if (currencies.length === 0) return <Text span>–</Text>;
  return (
    <Text span inherit className="numbers">
      {currencies
        .map((currency) => {
          const amount = of[currency] ?? "0";
          const plus = isChange && /[1-9]/.test(amount) && !amount.startsWith("-") ? "+" : "";
          return plus + formatMoney(amount, currency);
        })
        .join(" · ")}
    </Text>
  );
}
