/**
 * Which queries a topic of the live stream makes old: those whose path contains one of its words, and
 * those that are called by its name.
 */

const PATHS: Record<string, readonly string[]> = {
  adapters: ["/v1/adapters", "/v1/models"],
  uploads: ["/v1/uploads", "/v1/adapters"],
  rollouts: ["/aliases", "/rollouts", "/v1/adapters/{name}"],
  evaluations: ["/v1/evaluations"],
  requests: ["/v1/requests"],
  rejections: ["/v1/rejected_calls"],
  service: ["/v1/timeseries"],
  usage: ["/v1/usage", "/v1/costs", "/v1/limits", "/v1/forecast", "/budget"],
  invoices: ["/invoices", "/ledger", "/balances"],
  keys: ["api_keys"],
  admin_keys: ["/admin_keys"],
  memory: ["/engine/pages", "/engine/adapters"],
  ledger: ["/ledger", "/balances"],
  events: ["/v1/events", "/events", "/budget"],
  settings: ["/settings", "/billing_profile", "/v1/me"],
  signing_keys: ["/signing_keys"],
  plans: ["/admin/v1/plans", "/v1/me", "/v1/limits"],
  people: ["/people", "/invitations", "/auth/sessions"],
  webhooks: ["webhook_endpoints"],
  budgets: ["/v1/limits", "/v1/forecast", "/credits", "/budget"],
  tenants: ["/admin/v1/tenants", "/v1/me", "/admin/v1/plans"],
  prices: ["/prices"],
  reconciliation: ["/reconciliation"],
  audit: ["/audit_logs"],
  processes: ["/admin/v1/processes"],
  waits: ["/admin/v1/waits", "/admin/v1/fairness"],
};

/** Whether a change of `topics` may have changed what `path` answers. null: of everything. */
export function isTouched(path: string, topics: readonly string[] | null): boolean {
  if (topics === null) return true;
  return topics.some(
    (topic) =>
      path === topic || (PATHS[topic] ?? [`/${topic}`]).some((part) => path.includes(part)),
  );
}
