/** Filters of rejected calls as the address has them, and what an entry is called. */

import type { Schemas } from "../api/client";
import type { paths } from "../api/schema";
import { counted, formatMoment } from "../components/format";

export type RejectedCall = Schemas["RejectedCall"];
export type Query = NonNullable<paths["/v1/rejected_calls"]["get"]["parameters"]["query"]>;

export const SPANS_S = { "1h": 3_600, "24h": 86_400, "7d": 604_800 } as const;

/** Those that a select offers; an address may ask for any other. */
export const STATUSES: Record<string, string> = {
  "4xx": "Rejected (4xx)",
  "5xx": "Failed (5xx)",
  "400": "400 Invalid request",
  "401": "401 Invalid key",
  "403": "403 Not allowed",
  "404": "404 Unknown model",
  "413": "413 Too large",
  "429": "429 Rate limit or budget",
  "503": "503 Unavailable",
};

/** Of the address; what it does not say, or says wrong, is not asked for. */
export function queryOf(params: URLSearchParams, nowS: number): Query {
  const status = params.get("status") ?? "";
  return {
    q: params.get("q")?.trim() || undefined,
    status: /^[45](xx|\d\d)$/.test(status) ? status : undefined,
    code: params.get("code") || undefined,
    api_key: params.get("api_key") || undefined,
    ...timesOf(params, nowS),
  };
}

function timesOf(params: URLSearchParams, nowS: number): Pick<Query, "start" | "end"> {
  const [start, end] = [Number(params.get("start")), Number(params.get("end"))];
  if (start > 0 && end > start) return { start: iso(start), end: iso(end) };
  const span = SPANS_S[params.get("range") as keyof typeof SPANS_S];
  return span === undefined ? {} : { start: iso(nowS - span) };
}

const iso = (seconds: number): string => new Date(Math.floor(seconds) * 1000).toISOString();

interface Place {
  startS?: number;
  endS?: number;
  status?: string;
  tenant?: string | null;
  range?: keyof typeof SPANS_S;
}

/** Where the rejected calls of a time, a status, a tenant are listed. */
export function rejectedOf(base: string, { startS, endS, status, tenant, range }: Place): string {
  const query = new URLSearchParams();
  if (startS !== undefined && endS !== undefined) {
    query.set("start", String(Math.floor(startS)));
    query.set("end", String(Math.ceil(endS)));
  }
  if (range !== undefined) query.set("range", range);
  if (status) query.set("status", status);
  if (tenant) query.set("tenant", tenant);
  return `${base}?${query}`;
}

/** "1,200 calls until 12:03" of an entry that stands for several; null of a single call. */
export function togetherOf({ calls, last_at }: RejectedCall): string | null {
  return last_at === null ? null : `${counted(calls, "call")} until ${formatMoment(last_at)}`;
}
