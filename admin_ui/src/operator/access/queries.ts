/** What the page about the operator's access asks the API for. */

import type { Schemas } from "../../api/client";
import { useChange, usePaged } from "../../api/paged";
import type { AdminKey } from "./model";

export type NewAdminKey = Schemas["NewAdminKey"];

const PATH = "/admin/v1/admin_keys";
const TOUCHED = ["admin_keys"];
const LIMIT = 50;

export function useAdminKeys() {
  return usePaged<AdminKey, Schemas["AdminKeyPage"]>(PATH, null, (client, after) =>
    client.GET(PATH, { params: { query: { after, limit: LIMIT } } }),
  );
}

export function useCreateAdminKey(onDone: (made: NewAdminKey) => void) {
  return useChange<Schemas["AdminKeyCreate"], NewAdminKey>(
    TOUCHED,
    (client, body) => client.POST(PATH, { body }),
    onDone,
  );
}

export function useRotateAdminKey(id: string, onDone: (made: NewAdminKey) => void) {
  return useChange<number, NewAdminKey>(
    TOUCHED,
    (client, overlap_s) =>
      client.POST("/admin/v1/admin_keys/{admin_key_id}/rotate", {
        params: { path: { admin_key_id: id } },
        body: { overlap_s },
      }),
    onDone,
  );
}

export function useRevokeAdminKey(id: string, onDone: () => void) {
  return useChange<void, Schemas["Deleted"]>(
    TOUCHED,
    (client) =>
      client.DELETE("/admin/v1/admin_keys/{admin_key_id}", {
        params: { path: { admin_key_id: id } },
      }),
    onDone,
  );
}
