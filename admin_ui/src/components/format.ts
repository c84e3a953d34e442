/** How numbers, sizes, times and money are written. Money stays a string: it never meets a float. */

const COUNT = new Intl.NumberFormat("en-US");
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
/** What the targets of a plan are counted by. */
export const SEQUENCE_HELP =
  "A sequence is one generated answer or one embedded input. A request can have several.";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function formatCount(value: number): string {
  return COUNT.format(value);
}

/** `1 tenant`, `1,200 tenants`. */
export function counted(value: number, one: string, many = `${one}s`): string {
  return `${COUNT.format(value)} ${value === 1 ? one : many}`;
}

export function formatCompact(value: number): string {
  return COMPACT.format(value);
}

export function formatBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** A measured norm or scale: four significant digits are all anyone compares. */
export function formatNorm(norm: number): string {
  return String(Number(norm.toPrecision(4)));
}

export function formatMs(milliseconds: number): string {
  if (milliseconds === 0) return "0 ms";
  if (milliseconds < 1) return `${milliseconds.toFixed(2)} ms`;
  if (milliseconds < 10) return `${milliseconds.toFixed(1)} ms`;
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  return `${(milliseconds / 1000).toFixed(2)} s`;
}

/** A part of a whole in percent; a dash where there is no whole. Only all of it is 100%. */
export function formatPart(part: number | null): string {
  if (part === null) return "–";
  return part === 1 ? "100%" : `${Math.min(part * 100, 99.9).toFixed(1)}%`;
}

/** `sha256:0123456789ab…` as `0123456789ab`. */
export function shortDigest(digest: string, length = 12): string {
  const hex = digest.includes(":") ? digest.slice(digest.indexOf(":") + 1) : digest;
  return hex.slice(0, length);
}

const DECIMAL = /^(-?)(\d+)(?:\.(\d+))?$/;
const SYMBOLS: Record<string, string> = { USD: "$", EUR: "€", GBP: "£" };

/**
 * A decimal string with thousands separated and needless zeros dropped, at least two places kept.
 * Digit by digit, so nothing is rounded: `1234567.890000` is `$1,234,567.89`, `0.00001230` is
 * `$0.0000123`. What is not a plain decimal is shown as it came.
 */
export function formatMoney(amount: string, currency = "USD"): string {
  const number = formatAmount(amount);
  const symbol = SYMBOLS[currency.toUpperCase()];
  if (!symbol || !DECIMAL.test(amount)) return `${number} ${currency.toUpperCase()}`;
  return number.startsWith("-") ? `-${symbol}${number.slice(1)}` : symbol + number;
}

/** An exact decimal with its thousands apart and at least two places; of no currency. */
export function formatAmount(amount: string): string {
  const match = DECIMAL.exec(amount);
  if (!match) return amount;
  const [, sign = "", whole = "0", fraction = ""] = match;
  const grouped = whole.replace(/^0+(?=\d)/, "").replace(/\B(?=(\d{3})+$)/g, ",");
  return `${sign}${grouped}.${fraction.replace(/0+$/, "").padEnd(2, "0")}`;
}

const MOMENT = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  timeZoneName: "short",
});

/** A moment with the zone that it is told in, the browser's: "26 Nov 2026, 08:14 UTC". */
export function formatDate(value: string | number): string {
  return MOMENT.format(typeof value === "number" ? value * 1000 : new Date(value));
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "long" });

const DAY = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeZone: "UTC" });

/** The UTC day that begins then, or that a moment is in: "1 Nov 2026" wherever the browser is. */
export function formatDay(value: string | number): string {
  return DAY.format(typeof value === "number" ? value * 1000 : new Date(value));
}

/** "08:14:07 UTC" */
export function formatClock(value: number | Date): string {
  return CLOCK.format(typeof value === "number" ? value * 1000 : value);
}

/** The browser's time zone as times name it: "UTC", "CET". For the head of a column of times. */
export function zoneName(): string {
  const parts = MOMENT.formatToParts(new Date());
  return parts.find(({ type }) => type === "timeZoneName")?.value ?? "";
}

/** To the second, with its zone: for logs, where the order of things matters. */
export function formatMoment(value: string): string {
  return new Date(value).toLocaleString("en-GB", {
    day: "numeric",
    month: "short",
    year: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    timeZoneName: "short",
  });
}

/** "12 s ago" for a moment in unix seconds. */
export function formatAgo(thenS: number, nowS: number): string {
  const seconds = Math.max(0, Math.round(nowS - thenS));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}
