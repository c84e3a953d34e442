/** Adds the server's decimal strings exactly, digit by digit: no amount ever meets a float. */

const PLACES = 12;

/** Of plain decimals of at most twelve places, as the API writes them. */
export function sumOf(amounts: Iterable<string>): string {
  let total = 0n;
  for (const amount of amounts) total += parsed(amount);
  const digits = (total < 0n ? -total : total).toString().padStart(PLACES + 1, "0");
  const sign = total < 0n ? "-" : "";
  return `${sign}${digits.slice(0, -PLACES)}.${digits.slice(-PLACES)}`;
}

function parsed(amount: string): bigint {
  const match = /^(-?)(\d+)(?:\.(\d{1,12}))?$/.exec(amount);
  if (match === null) throw new Error(`${amount} is no amount of ours.`);
  const [, sign, whole = "0", places = ""] = match;
  const value = BigInt(whole + places.padEnd(PLACES, "0"));
  return sign === "-" ? -value : value;
}
