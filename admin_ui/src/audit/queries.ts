/** What the pages about the audit log ask the API for: a tenant's own entries, or all. */

import { useMutation, useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../api/client";
import { useApi } from "../api/context";
import { untilDone } from "../api/jobs";
import { usePaged } from "../api/paged";
import { fileName, save } from "../components/download";
import type { Entry, Side, Times } from "./model";

const OWN = "/v1/audit_logs";
const OPERATOR = "/admin/v1/audit_logs";
const LIMIT = 100;

export interface AuditFilters extends Times {
  q?: string;
  action?: string;
  actor?: string;
  target?: string;
  /** The operator's side only. */
  tenant_id?: string;
  operator?: boolean;
  order: "asc" | "desc";
}

export function useEntries(side: Side, filters: AuditFilters) {
  return usePaged<Entry, Schemas["AuditPage"]>(
    side === "own" ? OWN : OPERATOR,
    filters,
    (client, after) => {
      const params = { query: { ...filters, after, limit: LIMIT } };
      return side === "own" ? client.GET(OWN, { params }) : client.GET(OPERATOR, { params });
    },
  );
}

/** One entry by its id; null: there is none. */
export function useEntry(side: Side, id: string) {
  const { client } = useApi();
  const params = { query: { q: id, limit: 1 } };
  return useQuery({
    queryKey: [side === "own" ? OWN : OPERATOR, id],
    staleTime: Number.POSITIVE_INFINITY, // what was written stays as it is
    queryFn: async () => {
      const page =
        side === "own" ? await client.GET(OWN, { params }) : await client.GET(OPERATOR, { params });
      return required(page.data).data.find((entry) => entry.id === id) ?? null;
    },
  });
}

/** A tenant's whole log, fetched with the session's headers, which a plain link would not send. */
export function useOwnExport() {
  const { client } = useApi();
  return useMutation({
    mutationFn: async () => {
      const answer = await client.GET("/v1/audit_logs/export", { parseAs: "blob" });
      const content: unknown = answer.data;
      if (!(content instanceof Blob)) throw new Error("The server sent an empty file. Try again.");
      save(content, fileName(answer.response, "audit_log.jsonl"));
    },
  });
}

export interface Verdict {
  valid: boolean;
  problems: string[];
  at: Date;
  tookMs: number;
}

const VERIFICATIONS = "/admin/v1/audit_logs/verifications";

/** A worker walks every chain, which may take a while: its progress is told as a part of 1. */
export function useVerification(onProgress: (part: number | null) => void) {
  const { client } = useApi();
  return useMutation({
    mutationFn: async (): Promise<Verdict> => {
      const begun = performance.now();
      const asked = await client.POST(VERIFICATIONS, { body: { mode: "full" } });
      const job = await untilDone(
        required(asked.data),
        async ({ id }) => {
          const path = { verification_id: id };
          const found = await client.GET(`${VERIFICATIONS}/{verification_id}`, {
            params: { path },
          });
          return required(found.data);
        },
        onProgress,
      );
      const { valid, problems } = job;
      return { valid: valid === true, problems, at: new Date(), tookMs: performance.now() - begun };
    },
    onSettled: () => onProgress(null),
  });
}
