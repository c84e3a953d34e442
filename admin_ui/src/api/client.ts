/** The typed client: paths and bodies come from the generated schema, errors become ApiError. */

import type { UseQueryResult } from "@tanstack/react-query";
import createFetchClient, { type Client, type Middleware } from "openapi-fetch";
import createQueryHooks, { type OpenapiQueryClient } from "openapi-react-query";
import { isUnattended } from "./attention";
import { ORIGIN } from "./base";
import { errorFrom } from "./errors";
import type { components, paths } from "./schema";
import type { Credentials } from "./session";

export type { Credentials };

export type Schemas = components["schemas"];
export type FetchClient = Client<paths>;
export type QueryHooks = OpenapiQueryClient<paths>;

/** The headers beside the session's cookie, which browsers send by themselves. */
export function headersOf({ csrf, tenant }: Credentials): Record<string, string> {
  return tenant === null
    ? { "x-csrf-token": csrf }
    : { "x-csrf-token": csrf, "x-tenora-tenant": tenant };
}

function bySession(credentials: Credentials): Middleware {
  return {
    onRequest({ request }) {
      for (const [name, value] of Object.entries(headersOf(credentials)))
        request.headers.set(name, value);
      if (isUnattended()) request.headers.set("x-tenora-unattended", "1");
      return request;
    },
    async onResponse({ response }) {
      if (!response.ok) throw await errorFrom(response);
      return undefined;
    },
  };
}

export function createClient(credentials: Credentials): FetchClient {
  const client = createFetchClient<paths>({ baseUrl: ORIGIN });
  client.use(bySession(credentials));
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
  if (data === undefined) throw new Error("The server sent an empty response. Try again.");
  return data;
}
