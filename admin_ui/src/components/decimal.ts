/** Exact sums and differences of the server's decimal strings. Nothing is rounded and no float met. */

const PLACES = 12;
const UNIT = 10n ** BigInt(PLACES);
const DECIMAL = /^(-?)(\d+)(?:\.(\d{1,12})0*)?$/;

/** In 10^-12 of one; throws for what is no decimal of the server's. */
function units(amount: string): bigint {
  const match = DECIMAL.exec(amount);
  if (!match) throw new RangeError(`${amount} is not a decimal number.`);
  const [, sign, whole = "0", fraction = ""] = match;
  const size = BigInt(whole) * UNIT + BigInt(fraction.padEnd(PLACES, "0"));
  return sign === "-" ? -size : size;
}

function written(amount: bigint): string {
  const size = amount < 0n ? -amount : amount;
  const fraction = String(size % UNIT).padStart(PLACES, "0");
  return `${amount < 0n ? "-" : ""}${size / UNIT}.${fraction}`;
}

export function isDecimal(text: string): boolean {
  return DECIMAL.test(text);
}

export function sumOf(amounts: Iterable<string>): string {
  let total = 0n;
  for (const amount of amounts) total += units(amount);
  return written(total);
}

export function difference(from: string, to: string): string {
  return written(units(to) - units(from));
}

/** Below, at or above 0 as `left` is below, at or above `right`. */
export function compare(left: string, right: string): number {
  const by = units(left) - units(right);
  return by < 0n ? -1 : by > 0n ? 1 : 0;
}

export function isZero(amount: string): boolean {
  return units(amount) === 0n;
}

/** How much of `whole` a part is, to four digits, to draw with; null without a whole. */
export function partOf(part: string, whole: string): number | null {
  const of = units(whole);
  return of === 0n ? null : Number((units(part) * 10_000n) / of) / 10_000;
}

/** To draw with only: a pixel is no proof. */
export function drawn(amount: string): number {
  return Number(amount);
}

export type ByCurrency = Readonly<Record<string, string>>;

/** Currencies of any of them, in their order of letters. */
export function currenciesOf(...of: readonly ByCurrency[]): string[] {
  return [...new Set(of.flatMap((each) => Object.keys(each)))].sort();
}

/** What each currency has moved by; where there is none it was 0. */
export function differences(from: ByCurrency, to: ByCurrency): Record<string, string> {
  return Object.fromEntries(
    currenciesOf(from, to).map((currency) => [
      currency,
      difference(from[currency] ?? "0", to[currency] ?? "0"),
    ]),
  );
}
