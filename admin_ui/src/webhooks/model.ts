/** Endpoints and their deliveries in words. Knows no component. */

import type { Schemas } from "../api/client";

export type Side = "own" | "operator";
export type Endpoint = Schemas["WebhookEndpoint"];
export type Delivery = Schemas["WebhookDelivery"];
export type DeliveryState = Delivery["state"];

/** What is told today; an endpoint may ask for others before they come. */
export const EVENT_TYPES = [
  "adapter.active",
  "adapter.rejected",
  "adapter.damaged",
  "adapter.no_effect_measured",
  "evaluation.completed",
  "evaluation.failed",
  "rollout.rolled_back",
  "budget.alert",
  "budget.unbound",
  "budget.soft",
  "budget.hard",
  "key.created",
  "invoice.final",
  "invoice.void",
  "invoice.credited",
] as const;

export function typeWords(types: readonly string[] | null): string {
  if (types === null) return "all events";
  if (types.length <= 2) return types.join(", ");
  return `${types.slice(0, 2).join(", ")} and ${types.length - 2} more`;
}

/** What became of the last attempt, in a line. */
export function outcome({ last_status, last_error, attempts }: Delivery): string {
  if (attempts === 0) return "not attempted yet";
  if (last_status !== null && last_error === null) return `status ${last_status}`;
  if (last_error !== null) return last_error;
  return "no response";
}

export const STATES: Record<DeliveryState, { color: string; words: string }> = {
  waiting: { color: "blue", words: "waiting" },
  delivered: { color: "teal", words: "delivered" },
  dead: { color: "red", words: "failed" },
};

export function isDeliveryState(text: string | null): text is DeliveryState {
  return text !== null && text in STATES;
}

/** What a form holds; `all` and no types are the same to the server. */
export interface EndpointFields {
  url: string;
  description: string;
  isAll: boolean;
  types: string[];
}

export const NEW_ENDPOINT: EndpointFields = { url: "", description: "", isAll: true, types: [] };

export function fieldsOf({ url, description, types }: Endpoint): EndpointFields {
  return { url, description, isAll: types === null, types: types ?? [] };
}

export function bodyOf(fields: EndpointFields): {
  url: string;
  description: string;
  types: string[] | null;
} {
  return {
    url: fields.url.trim(),
    description: fields.description.trim(),
    types: fields.isAll ? null : fields.types,
  };
}
