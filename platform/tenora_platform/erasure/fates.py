"""What becomes of each table's rows of a tenant that is erased. A test compares this with the
schema, so that no table of tenants' is forgotten; docs/privacy.md says the same in words."""

from __future__ import annotations

DELETED: dict[str, str] = {
    "sessions": "api_key_id IN (SELECT id FROM api_keys WHERE tenant_id = :tenant)",
    "adapter_pins": "",
    "adapter_probes": "",
    "adapter_probe_prompts": "",
    "adapter_aliases": "",
    "rollouts": "",
    "alias_changes": "",
    "shadow_answers": "",
    "evaluation_answers": "",
    "evaluation_items": "",
    "evaluations": "",
    "tenant_settings": "",  # before what is written under its lock
    "kept_contents": "",
    "stored_responses": "",
    "rejected_calls": "",
    "idempotency_keys": "",
    "webhook_queue": "event_id IN (SELECT id FROM events WHERE tenant_id = :tenant)",
    "webhook_deliveries": "tenant_id = :tenant"  # and those of its events to the operator
    " OR event_id IN (SELECT id FROM events WHERE tenant_id = :tenant)",
    "webhook_endpoints": "",
    "events": "",
    "upload_parts": "",
    "uploads": "",
    "account_budgets": "",
    "request_wait_parts": "(request, sequence) IN "
    "(SELECT request, sequence FROM request_waits WHERE tenant_id = :tenant)",
    "request_waits": "",
    "service_minutes": "",
    "service_hours": "",
    "invitations": "",
    "memberships": "",
    "api_keys": "",
}
"""In this order, for rows refer to each other; which rows, where it is not by `tenant_id`."""

CHANGED = {
    "tenants": "its name becomes a pseudonym",
    "adapters": "its name becomes its id",
    "adapter_versions": "revoked, without report, chat template and author; the content goes",
    "people": "deleted, who belongs to nobody else",
    "billing_profiles": "deleted, unless there are invoices or usage to invoice",
}
"""By statements of their own (`worker`)."""

KEPT = {
    "audit_logs": "evidence: a chain of which no entry can be taken",
    "canaries": "the canary's own tenants, which cannot be deleted",
    "credit_grants": "books",
    "engine_totals": "books: what engines counted",
    "invoice_lines": "invoices",
    "invoice_payments": "invoices",
    "invoice_usage": "invoices",
    "invoices": "invoices, which name the buyer as they must",
    "late_ratings": "books: when what had waited for a price was rated",
    "ledger_accounts": "books",
    "ledger_balances": "books",
    "ledger_due": "books",
    "ledger_entries": "books",
    "ledger_transactions": "books",
    "moved_days": "proof of the books",
    "occupancy_events": "books",
    "price_versions": "books: by what was charged",
    "reconciliations": "proof of the books",
    "share_minutes": "counts, for the days that the history of service is kept",
    "tenant_plans": "books: by what plan was charged",
    "tenant_taxes": "books: with what tax was invoiced",
    "unrated_events": "books: what waits for a price",
    "usage_days": "books",
    "usage_events": "books: counts and times of each request, no text",
    "usage_hours": "books",
    "usage_series": "books: names as the client wrote them, keys and versions by id",
    "usage_volumes": "books",
    "wait_minutes": "counts, for the days that the history of service is kept",
}


def condition(table: str) -> str:
    """Which rows of a table that is `DELETED` are the tenant's."""
    return DELETED[table] or "tenant_id = :tenant"
