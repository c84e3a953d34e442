/** The typed client: paths and bodies come from the generated schema, errors become ApiError. */

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
