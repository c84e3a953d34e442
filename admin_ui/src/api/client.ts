/** The typed client: paths and bodies come from the generated schema, errors become ApiError. */

import type { UseQueryResult } from "@tanstack/react-query";
import createFetchClient, { type Client, type Middleware } from "openapi-fetch";
import createQueryHooks, { type OpenapiQueryClient } from "openapi-react-query";
import { errorFrom } from "./errors";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type FetchClient = Client<paths>;
export type QueryHooks = OpenapiQueryClient<paths>;

function bearer(key: string): Middleware {
  return {
    onRequest({ request }) {
      request.headers.set("authorization", `Bearer ${key}`);
      return request;
    },
    async onResponse({ response }) {
      if (!response.ok) throw await errorFrom(response);
      return undefined;
    },
  };
}

export function createClient(key: string): FetchClient {
  const client = createFetchClient<paths>({ baseUrl: window.location.origin });
  client.use(bearer(key));
  return client;
}

export function createHooks(client: FetchClient): QueryHooks {
  return createQueryHooks(client);
}

/**
 * The result with the error it can really hold: the document does not declare error bodies, and
 * the middleware above turns each of them into an ApiError.
 */
export function withErrors<Data, Declared>(
  result: UseQueryResult<Data, Declared>,
): UseQueryResult<Data, Error> {
  return result as UseQueryResult<Data, unknown> as UseQueryResult<Data, Error>;
}

/** What an answer of success holds. */
export function required<T>(data: T | undefined): T {
  if (data === undefined) throw new Error("The server sent an empty answer.");
  return data;
}
