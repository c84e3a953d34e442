/** What an invoice's lines lead to, and how they are written. Amounts stay the server's strings. */

import type { Schemas } from "../api/client";
import { formatCount, formatDay, formatMoney } from "../components/format";

export type LineGroup = Schemas["LineDetails"]["group_by"];

/** A part of a line; what is absent: whatever. `adapter` "": the base model. */
export interface LinePart {
  day?: string;
  adapter?: string;
  api_key?: string;
}

export const GROUPS: readonly { value: LineGroup; label: string }[] = [
  { value: "day", label: "Day" },
  { value: "adapter", label: "Adapter" },
  { value: "api_key", label: "Key" },
  { value: "request", label: "Request" },
];

export const BASE_MODEL = "base model";

/** Whether a line is of usage, and so leads down. */
export function leadsDown(line: Schemas["InvoiceLine"]): boolean {
  return line.meter !== null && (line.kind === "usage" || line.kind === "adjustment");
}

/** What a row is called, by what the line is taken apart. */
export function nameOf(by: LineGroup, row: Schemas["LineDetail"]): string {
  if (by === "day") return row.day ?? "";
  if (by === "api_key") return row.api_key_id ?? "no API key";
  if (by === "request") return row.x_request_id ?? row.request_id ?? row.event_id ?? "";
  return adapterOf(row) || BASE_MODEL;
}

function adapterOf({ adapter, adapter_version: version }: Schemas["LineDetail"]): string {
  if (!adapter) return "";
  return version ? `${adapter}@${version}` : adapter;
}

/** The part that a row is, within the part it was found in. */
export function narrowed(part: LinePart, by: LineGroup, row: Schemas["LineDetail"]): LinePart {
  if (by === "day") return { ...part, day: row.day ?? undefined };
  if (by === "adapter") return { ...part, adapter: adapterOf(row) };
  return { ...part, api_key: row.api_key_id ?? undefined };
}

/** By what a part is taken apart next: day, adapter, key, and at last its requests. */
export function nextGroup(part: LinePart): LineGroup {
  if (part.day === undefined) return "day";
  if (part.adapter === undefined) return "adapter";
  return part.api_key === undefined ? "api_key" : "request";
}

/** `13,500,000 tokens × $0.20 / 1,000,000`; several prices where the list has steps. */
export function equation(line: Schemas["InvoiceLine"], currency: string): string | null {
  if (line.quantity === null || line.prices === null || line.prices.length === 0) return null;
  const quantity = `${formatCount(line.quantity)} ${line.unit ?? ""}`.trim();
  const prices = line.prices.map(({ from, per_million }) => {
    const price = formatMoney(per_million, currency);
    return from === 0 ? price : `${price} from ${formatCount(from)}`;
  });
  return `${quantity} × ${prices.join(", ")} / 1,000,000`;
}

/** When an invoice is to be paid; undefined: never. */
export function dueWords({ status, due_at }: Pick<Schemas["Invoice"], "status" | "due_at">) {
  if (status === "draft") return "due once finalised";
  return due_at ? `due ${formatDay(due_at)} (UTC)` : undefined;
}

/** "2026-11" as "November 2026". */
export function monthTitle(period: string): string {
  return new Date(`${period}-01T00:00:00Z`).toLocaleString("en-GB", {
    month: "long",
    year: "numeric",
    timeZone: "UTC",
  });
}
