import { Text } from "@mantine/core";
import { formatMoney } from "./format";

export interface Amount {
  amount: string;
  currency: string;
}

/** Amounts as the server sent them; those of several currencies stand below each other, never added. */
export function Money({ of }: { of: Amount | readonly Amount[] }) {
  const amounts = "amount" in of ? [of] : of;
  if (amounts.length === 0) return <Text span>–</Text>;
  return (
    <>
      {amounts.map(({ amount, currency }) => (
        <Text key={currency} span display="block" inherit className="numbers">
          {formatMoney(amount, currency)}
        </Text>
      ))}
    </>
  );
}
