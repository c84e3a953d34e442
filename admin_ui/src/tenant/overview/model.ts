/** What the overview makes of a forecast, of how one was served, and of what changed lately. */

import type { Schemas } from "../../api/client";
import { formatAmount, formatMoney } from "../../components/format";
import type { Series } from "../../components/series";

export type Forecast = Schemas["Forecast"];
export type CurrencyForecast = Schemas["CurrencyForecast"];
export type Answer = Schemas["TimeSeriesAnswer"];
export type Event = Schemas["Event"];
export type AuditEntry = Schemas["AuditEntry"];

/** Metrics of one question, and those of the other, which is by class. */
export const SERVICE = "ttft,tpot,ttft_attainment,tpot_attainment,answers,errors";
export const TOKENS = "prompt_tokens,output_tokens";

export const COLORS = [
  "light-dark(#1f8176, #4cb5a7)",
  "light-dark(#3b6fd4, #6f9cf0)",
  "light-dark(#d9822b, #f0a458)",
  "light-dark(#8b55c4, #b48be6)",
  "light-dark(#c94a6a, #ec7f99)",
  "light-dark(#2b9bb8, #5cc6e0)",
] as const;
/** Of errors: what went wrong is red, however many ways there are. */
export const ERROR_COLORS = [
  "light-dark(#c92a2a, #ff8787)",
  "light-dark(#d9822b, #f0a458)",
  "light-dark(#8b55c4, #b48be6)",
  "light-dark(#868e96, #adb5bd)",
] as const;
const colorOf = (index: number) => COLORS[index % COLORS.length] ?? COLORS[0];

/** A chart's step, so that it has some ten to two hundred points. */
export function stepOf(seconds: number): string {
  if (seconds <= 3 * 3600) return "1m";
  if (seconds <= 12 * 3600) return "5m";
  if (seconds <= 36 * 3600) return "15m";
  return seconds <= 8 * 86_400 ? "1h" : "6h";
}

/** The series of a metric, named by their kind: p50, p99, 429, ... */
export function kindsOf(
  answer: Answer,
  metric: string,
  colors: readonly string[] = COLORS,
): Series[] {
  return answer.series
    .filter((each) => each.metric === metric)
    .map(({ kind, values }, index) => ({
      name: kind ?? metric,
      color: colors[index % colors.length] ?? COLORS[0],
      values,
    }));
}

/** Prompt and output tokens together, by the class that served. */
export function tokensByClass(answer: Answer): Series[] {
  const classes = [
    ...new Set(answer.series.map(({ service_class }) => service_class ?? "no class")),
  ].sort();
  return classes.map((name, index) => {
    const own = answer.series.filter(({ service_class }) => (service_class ?? "no class") === name);
    const values = answer.times.map((_, at) => {
      const known = own.map(({ values: each }) => each[at] ?? null).filter((it) => it !== null);
      return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0);
    });
    return { name, color: colorOf(index), values };
  });
}

export interface Kept {
  met: number;
  promised: number;
  /** The promise, in ms; null: there is none, or several. */
  targetMs: number | null;
}

/** How much of what was promised was met, over all the times of an answer. */
export function kept(answer: Answer, metric: "ttft_attainment" | "tpot_attainment"): Kept {
  const own = answer.series.filter((each) => each.metric === metric);
  const targets = new Set(own.map(({ target_ms }) => target_ms));
  const sum = answer.sums.find((each) => each.metric === metric);
  return {
    met: sum?.met ?? 0,
    promised: sum?.promised ?? 0,
    targetMs: targets.size === 1 ? ([...targets][0] ?? null) : null,
  };
}

/** The sum over all series and times of a metric; null: nothing is known. */
export function totalOf(answer: Answer, metric: string): number | null {
  return answer.sums.find((each) => each.metric === metric)?.value ?? null;
}

/** Where the requests of a time are listed; `sort`: those first that took longest. */
export function requestsOf(startS: number, endS: number, sort?: string): string {
  const query = new URLSearchParams({
    start: String(Math.floor(startS)),
    end: String(Math.ceil(endS)),
  });
  if (sort !== undefined) query.set("sort", sort);
  return `/requests?${query}`;
}

/** How many calls were answered with an error; null: it is not known of any call. */
export function errorsOf(answer: Answer): number | null {
  if (totalOf(answer, "answers") === null) return null;
  return totalOf(answer, "errors") ?? 0; // without an error there is no series of them
}

export interface Change {
  id: string;
  atS: number;
  what: string;
  by: string | null;
  /** Where it is shown. */
  to: string | null;
}

const TOLD: Record<string, (of: (name: string) => string) => string> = {
  "adapter.active": (of) => `${of("adapter")}@${of("version")} is ready`,
  "adapter.rejected": (of) => `${of("adapter")}@${of("version")} was rejected`,
  "adapter.no_effect_measured": (of) =>
    `${of("adapter")}@${of("version")} has no measurable effect`,
  "adapter.damaged": (of) => `The stored content of ${of("adapter")}@${of("version")} is damaged`,
  "budget.alert": (of) => `${of("threshold")}% of the account budget is reached`,
  "budget.unbound": (of) => `The account budget in ${of("currency")} does not bind any more`,
  "invoice.final": (of) => `Invoice ${of("number")} was issued`,
  "invoice.void": (of) => `Invoice ${of("number")} was voided`,
  "invoice.credited": (of) => `Credit note issued: ${of("number")}`,
  "key.created": (of) => `API key created: ${of("name")}`,
  "rollout.rolled_back": (of) => `${of("adapter")}@${of("alias")} was rolled back`,
};

const BUDGETS: Record<string, string> = {
  key_day: "daily budget",
  key_month: "monthly budget",
  account_month: "monthly account budget",
  plan_day: "plan's daily budget",
  plan_month: "plan's monthly budget",
};

/** "The monthly budget of €25.00 of API key ci is used up": how much it is, and whose. */
function budgetWords({ type, data }: Event, keys: ReadonlyMap<string, string>): string {
  const text = (name: string) => (typeof data[name] === "string" ? data[name] : "");
  if (text("budget") === "credit") return "The prepaid credit is used up";
  const key = text("api_key_id");
  const whose = key && ` of API key ${keys.get(key) ?? key}`;
  const [cap, currency] = [text("cap"), text("currency")];
  const amount = cap && ` of ${currency ? formatMoney(cap, currency) : formatAmount(cap)}`;
  const what = type === "budget.hard" ? "is used up" : "reached its soft limit";
  return `The ${BUDGETS[text("budget")] ?? "budget"}${amount}${whose} ${what}`;
}

/** What an event says, to people; `keys`: names of API keys, as far as they are known. */
export function eventWords(event: Event, keys: ReadonlyMap<string, string> = new Map()): string {
  if (event.type === "budget.hard" || event.type === "budget.soft") return budgetWords(event, keys);
  const of = (name: string) => String(event.data[name] ?? "").trim();
  return TOLD[event.type]?.(of).trim() ?? inWords(event.type);
}

/** Entries of the log that say what an event says in better words. */
const TOLD_TWICE = [
  "adapter_version.reject",
  "adapter_version.activate",
  "api_key.create",
  "invoice.finalise",
  "invoice.void",
];

/** What happened and what was done, newest first. */
export function changes(
  events: readonly Event[],
  entries: readonly AuditEntry[],
  count: number,
  keys: ReadonlyMap<string, string> = new Map(),
): Change[] {
  const told = events.map((event): Change => {
    const of = (name: string) => String(event.data[name] ?? "").trim();
    return {
      id: event.id,
      atS: Date.parse(event.created_at) / 1000,
      what: eventWords(event, keys),
      by: null,
      to: addressOf(event.type, of),
    };
  });
  const done = entries
    .filter(({ action }) => !TOLD_TWICE.includes(action))
    .map(
      (entry): Change => ({
        id: entry.id,
        atS: Date.parse(entry.at) / 1000,
        what: inWords(entry.action),
        by: entry.actor_name ?? entry.actor,
        to: addressOf(entry.action, () => ""),
      }),
    );
  return [...told, ...done].sort((a, b) => b.atS - a.atS).slice(0, count);
}

/** Of the log's actions what adding "d" or "ed" does not make a past. */
const PAST: Record<string, string> = {
  put: "changed",
  begin: "started",
  cancel: "cancelled",
  roll_back: "rolled back",
  withdraw: "withdrawn",
  rebuild: "rebuilt",
};
const VERBS =
  /^(create|update|delete|revoke|rotate|activate|reject|complete|remove|join|grant|reverse)$/;

/** "adapter_version.create" as "Adapter version created": what has no better words. */
function inWords(type: string): string {
  const [of = "", verb = ""] = type.split(".");
  const past = PAST[verb] ?? (VERBS.test(verb) ? verb.replace(/e?$/, "ed") : verb);
  const words = `${of} ${past}`.replaceAll("_", " ").trim();
  return words.replace(/^api /, "API ").replace(/^./, (first) => first.toUpperCase());
}

function addressOf(type: string, of: (name: string) => string): string | null {
  if (type.startsWith("invoice")) return of("id") ? `/invoices/${of("id")}` : "/invoices";
  if (type.startsWith("budget.alert") || type.startsWith("account_budget")) return "/budget";
  if (type.startsWith("budget")) {
    if (of("budget") === "account_month") return "/budget";
    return of("budget") === "credit" ? "/credit" : "/limits";
  }
  if (type.startsWith("key") || type.startsWith("api_key")) return "/keys";
  const adapter = of("adapter");
  if (adapter) return `/adapters/${encodeURIComponent(adapter)}`;
  return /^(adapter|alias|rollout)/.test(type) ? "/adapters" : null;
}

const DAY_MS = 86_400_000;

/** Every day of the month, in unix seconds, and what it cost; null: it has not begun. */
export function daysOf(forecast: Forecast, of: CurrencyForecast) {
  const amounts = new Map(of.days.map(({ day, amount }) => [day, Number(amount)]));
  const now = Date.parse(forecast.as_of);
  const times: number[] = [];
  const values: (number | null)[] = [];
  for (let at = Date.parse(forecast.start); at < Date.parse(forecast.end); at += DAY_MS) {
    times.push(at / 1000);
    const day = new Date(at).toISOString().slice(0, 10);
    values.push(at > now ? null : (amounts.get(day) ?? 0));
  }
  return { times, values };
}

/** 0 to 1 of a budget, for a bar; what is beyond it fills it. */
export function partOf(amount: string, budget: string): number {
  const whole = Number(budget);
  return whole > 0 ? Math.min(Number(amount) / whole, 1) : 0;
}
