/** A new price list as a form has it, and what a preview says of it. Pure. */

import type { Schemas } from "../../api/client";
import { type ByCurrency, compare, differences, isDecimal, isZero } from "../../components/decimal";
import { type Entry, entriesOf, HELD, METERS, type Meter, type Price } from "../prices/model";

export const SCOPES = {
  general: "All tenants",
  plan: "A plan",
  tenant: "A tenant",
  adapter: "An adapter",
} as const;
export type ScopeKind = keyof typeof SCOPES;
export type Body = Schemas["PriceVersionCreate"];
export type Preview = Schemas["PricePreview"];
export type TenantPreview = Schemas["TenantPreview"];

/** An entry as it is typed; `class_` "" is any class. */
export interface EntryFields {
  key: number;
  meter: Meter;
  class_: string;
  from: string;
  price: string;
}

export interface Fields {
  scope: ScopeKind;
  /** The plan's name, the tenant's or the adapter's id. */
  of: string;
  model: string;
  currency: string;
  /** "": from now on; else a local date and time as the browser's field has it. */
  begins: string;
  entries: EntryFields[];
  minimum: string;
  included: string;
}

const FIRST: Record<Meter, string> = {
  uncached_prefill: "",
  cached_prefill: "",
  output: "",
  cold_load: "0",
  device_residency: "0",
  host_residency: "0",
  stored: "0",
};

export const EMPTY: Fields = {
  scope: "general",
  of: "",
  model: "",
  currency: "USD",
  begins: "",
  entries: METERS.map((meter, key) => ({ key, meter, class_: "", from: "0", price: FIRST[meter] })),
  minimum: "0",
  included: "0",
};

/** `0.400000` as `0.4`. */
function plain(amount: string): string {
  return amount.includes(".") ? amount.replace(/0+$/, "").replace(/\.$/, "") : amount;
}

function typed(entry: Entry, key: number): EntryFields {
  return {
    key,
    meter: entry.meter,
    class_: entry.class_ ?? "",
    from: String(entry.from),
    price: plain(entry.price),
  };
}

/** A new version begins with what the list says now. */
export function fieldsFrom(price: Price): Fields {
  const scope: ScopeKind = price.adapter
    ? "adapter"
    : price.tenant
      ? "tenant"
      : price.plan
        ? "plan"
        : "general";
  return {
    ...EMPTY,
    scope,
    of: price.adapter ?? price.tenant ?? price.plan ?? "",
    model: price.model ?? "",
    currency: price.currency,
    entries: entriesOf(price.per_million).map(typed),
    minimum: plain(price.minimum),
    included: plain(price.included),
  };
}

export interface Faults {
  of?: string;
  currency?: string;
  minimum?: string;
  included?: string;
  begins?: string;
  /** By the key of the entry. */
  entries: Record<number, string>;
  meters: Meter[];
}

const AMOUNT = "Enter a number, for example 0.40";

export function faultsIn(fields: Fields): Faults {
  const faults: Faults = { entries: {}, meters: [] };
  if (fields.scope !== "general" && fields.of.trim() === "") faults.of = "Enter a value";
  if (!/^[A-Z]{3}$/.test(fields.currency))
    faults.currency = "Enter a three-letter currency code, for example USD";
  if (!isDecimal(fields.minimum)) faults.minimum = AMOUNT;
  if (!isDecimal(fields.included)) faults.included = AMOUNT;
  if (fields.begins !== "" && Number.isNaN(Date.parse(fields.begins)))
    faults.begins = "Enter a date and time, or leave this empty";
  const seen = new Set<string>();
  for (const entry of fields.entries) {
    const place = `${entry.meter} ${entry.class_} ${entry.from}`;
    if (!isDecimal(entry.price) || entry.price.startsWith("-")) faults.entries[entry.key] = AMOUNT;
    else if (!/^\d+$/.test(entry.from)) faults.entries[entry.key] = "Enter a whole number of units";
    else if (seen.has(place)) faults.entries[entry.key] = "This class and tier already has a price";
    else if (HELD.includes(entry.meter) && entry.class_ !== "")
      faults.entries[entry.key] = "This meter has no classes";
    seen.add(place);
  }
  for (const { meter, class_, key } of fields.entries)
    if (!seen.has(`${meter} ${class_} 0`) && faults.entries[key] === undefined)
      faults.entries[key] = "Add a price from unit 0 for this class";
  faults.meters = (["uncached_prefill", "cached_prefill", "output"] as const).filter(
    (meter) => !fields.entries.some((entry) => entry.meter === meter),
  );
  return faults;
}

export function isRight(faults: Faults): boolean {
  const { entries, meters, ...fields } = faults;
  return (
    Object.values(fields).every((fault) => fault === undefined) &&
    Object.keys(entries).length === 0 &&
    meters.length === 0
  );
}

/** What is sent; only of fields without faults. */
export function bodyOf(fields: Fields): Body {
  const of = (meter: Meter) =>
    fields.entries
      .filter((entry) => entry.meter === meter)
      .map(({ class_, from, price }) => ({ class: class_ || null, from: Number(from), price }));
  const prices = Object.fromEntries(
    METERS.flatMap((meter) => {
      const entries = of(meter);
      return entries.length === 0 ? [] : [[meter, entries]];
    }),
  );
  return {
    currency: fields.currency,
    minimum: fields.minimum,
    included: fields.included,
    model: fields.model.trim() || null,
    plan: fields.scope === "plan" ? fields.of : null,
    tenant: fields.scope === "tenant" ? fields.of : null,
    adapter: fields.scope === "adapter" ? fields.of : null,
    per_million: prices as Body["per_million"],
    ...(fields.begins === "" ? {} : { effective_from: new Date(fields.begins).toISOString() }),
  };
}

/** What a preview hangs on: not when the list begins. */
export function previewBodyOf(fields: Fields, month: string): Schemas["PricePreviewCreate"] {
  const { effective_from: _, ...body } = bodyOf(fields);
  return { ...body, month };
}

export interface Row {
  tenant: string;
  name: string;
  before: ByCurrency;
  after: ByCurrency;
  change: ByCurrency;
  unpriced: number;
  preview: TenantPreview;
}

/** By tenant what is due, with what lists include and ask for at least; who pays most more first. */
export function rowsOf(preview: Preview): Row[] {
  return preview.data
    .map((of) => ({
      tenant: of.tenant,
      name: of.tenant_name ?? of.tenant,
      before: of.due_before,
      after: of.due_after,
      change: differences(of.due_before, of.due_after),
      unpriced: of.meters.reduce((total, { unpriced }) => total + unpriced, 0),
      preview: of,
    }))
    .sort(
      (left, right) => bySize(right.change, left.change) || left.name.localeCompare(right.name),
    );
}

/** Currency by currency, in the order of letters: they are never weighed against each other. */
function bySize(left: ByCurrency, right: ByCurrency): number {
  for (const currency of Object.keys({ ...left, ...right }).sort()) {
    const by = compare(size(left[currency]), size(right[currency]));
    if (by !== 0) return by;
  }
  return 0;
}

const size = (amount = "0") => amount.replace(/^-/, "");

export interface Verdict {
  more: number;
  less: number;
  same: number;
  unpriced: number;
}

/** How many tenants pay more, less and the same; whoever pays in another currency counts as both. */
export function verdictOf(rows: readonly Row[]): Verdict {
  const verdict = { more: 0, less: 0, same: 0, unpriced: 0 };
  for (const { change, unpriced } of rows) {
    const moved = Object.values(change).filter((amount) => !isZero(amount));
    if (moved.some((amount) => !amount.startsWith("-"))) verdict.more++;
    if (moved.some((amount) => amount.startsWith("-"))) verdict.less++;
    if (moved.length === 0) verdict.same++;
    if (unpriced > 0) verdict.unpriced++;
  }
  return verdict;
}

/** The moment that a refusal names as the earliest. */
export function earliestIn(message: string): string | null {
  return /earliest date allowed is (\S+?)\.?$/.exec(message)?.[1] ?? null;
}

/** As the browser's field has it, in local time, up to the next second. */
export function fieldTime(moment: string): string {
  const date = new Date(Math.ceil(Date.parse(moment) / 1000) * 1000);
  const local = new Date(date.getTime() - date.getTimezoneOffset() * 60_000);
  return local.toISOString().slice(0, 19);
}
