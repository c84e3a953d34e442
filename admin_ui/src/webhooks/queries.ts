/** What the pages about webhooks ask the API for: a tenant's own endpoints, or the operator's. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../api/client";
import { useApi } from "../api/context";
import { useChange, usePaged } from "../api/paged";
import type { Delivery, DeliveryState, Endpoint, Side } from "./model";

const OWN = "/v1/webhook_endpoints";
const OPERATOR = "/admin/v1/webhook_endpoints";
const TOUCHED = ["webhook_endpoints"];
const LIMIT = 50;

const pathOf = (side: Side) => (side === "own" ? OWN : OPERATOR);

export function useEndpoints(side: Side, q: string | undefined) {
  return usePaged<Endpoint, Schemas["WebhookEndpointPage"]>(
    pathOf(side),
    { q },
    (client, after) => {
      const params = { query: { q, after, limit: LIMIT } };
      return side === "own" ? client.GET(OWN, { params }) : client.GET(OPERATOR, { params });
    },
  );
}

export function useEndpoint(side: Side, endpoint_id: string) {
  const { client } = useApi();
  const params = { path: { endpoint_id } };
  return useQuery({
    queryKey: [pathOf(side), endpoint_id],
    queryFn: async () =>
      required(
        side === "own"
          ? (await client.GET("/v1/webhook_endpoints/{endpoint_id}", { params })).data
          : (await client.GET("/admin/v1/webhook_endpoints/{endpoint_id}", { params })).data,
      ),
  });
}

export interface DeliveryFilters {
  q?: string;
  state?: DeliveryState;
  order: "asc" | "desc";
}

export function useDeliveries(side: Side, endpoint_id: string, filters: DeliveryFilters) {
  return usePaged<Delivery, Schemas["WebhookDeliveryPage"]>(
    `${pathOf(side)}/deliveries`,
    { endpoint_id, ...filters },
    (client, after) => {
      const params = { path: { endpoint_id }, query: { ...filters, after, limit: LIMIT } };
      return side === "own"
        ? client.GET("/v1/webhook_endpoints/{endpoint_id}/deliveries", { params })
        : client.GET("/admin/v1/webhook_endpoints/{endpoint_id}/deliveries", { params });
    },
  );
}

export type NewEndpoint = Schemas["NewWebhookEndpoint"];

export function useCreateEndpoint(side: Side, onDone: (made: NewEndpoint) => void) {
  return useChange<Schemas["EndpointCreate"], NewEndpoint>(
    TOUCHED,
    (client, body) =>
      side === "own" ? client.POST(OWN, { body }) : client.POST(OPERATOR, { body }),
    onDone,
  );
}

export function useChangeEndpoint(side: Side, endpoint_id: string, onDone?: () => void) {
  const params = { path: { endpoint_id } };
  return useChange<Schemas["EndpointChange"], Endpoint>(
    TOUCHED,
    (client, body) =>
      side === "own"
        ? client.PATCH("/v1/webhook_endpoints/{endpoint_id}", { params, body })
        : client.PATCH("/admin/v1/webhook_endpoints/{endpoint_id}", { params, body }),
    onDone,
  );
}

export function useRotateSecret(
  side: Side,
  endpoint_id: string,
  onDone: (made: NewEndpoint) => void,
) {
  const params = { path: { endpoint_id } };
  return useChange<number, NewEndpoint>(
    TOUCHED,
    (client, overlap_s) => {
      const body = { overlap_s };
      return side === "own"
        ? client.POST("/v1/webhook_endpoints/{endpoint_id}/rotate", { params, body })
        : client.POST("/admin/v1/webhook_endpoints/{endpoint_id}/rotate", { params, body });
    },
    onDone,
  );
}

export function useDeleteEndpoint(side: Side, endpoint_id: string, onDone: () => void) {
  const params = { path: { endpoint_id } };
  return useChange<void, Schemas["Deleted"]>(
    TOUCHED,
    (client) =>
      side === "own"
        ? client.DELETE("/v1/webhook_endpoints/{endpoint_id}", { params })
        : client.DELETE("/admin/v1/webhook_endpoints/{endpoint_id}", { params }),
    onDone,
  );
}

export function useResend(side: Side, endpoint_id: string) {
  return useChange<string, Delivery>(TOUCHED, (client, delivery_id) => {
    const params = { path: { endpoint_id, delivery_id } };
    return side === "own"
      ? client.POST("/v1/webhook_endpoints/{endpoint_id}/deliveries/{delivery_id}/resend", {
          params,
        })
      : client.POST("/admin/v1/webhook_endpoints/{endpoint_id}/deliveries/{delivery_id}/resend", {
          params,
        });
  });
}

export function useResendDead(side: Side, endpoint_id: string) {
  const params = { path: { endpoint_id } };
  return useChange<void, Schemas["Resent"]>(TOUCHED, (client) =>
    side === "own"
      ? client.POST("/v1/webhook_endpoints/{endpoint_id}/resend_dead", { params })
      : client.POST("/admin/v1/webhook_endpoints/{endpoint_id}/resend_dead", { params }),
  );
}
