"""What a change is called for who listens: which topics belong to which table and which action of
the audit log. A client has its queries by topic; it knows neither rows nor actions."""

from __future__ import annotations

from collections.abc import Mapping

TOPICS = frozenset(
    {
        "adapters",
        "admin_keys",
        "audit",
        "budgets",
        "evaluations",
        "events",
        "invoices",
        "keys",
        "ledger",
        "memory",
        "people",
        "plans",
        "prices",
        "processes",
        "reconciliation",
        "rejections",
        "requests",
        "rollouts",
        "service",
        "settings",
        "signing_keys",
        "tenants",
        "uploads",
        "usage",
        "waits",
        "webhooks",
    }
)

FOR_WORKERS = frozenset({"jobs"})
"""Heard by workers alone."""

BUSY = frozenset(
    {"audit", "events", "rejections", "requests", "service", "usage", "waits", "webhooks"}
)
"""They change with every request, or nearly; listeners are told seldom."""

SHARED = frozenset({"plans", "prices"})
"""What the operator changes here may hold for every tenant."""

BY_TABLE: Mapping[str, frozenset[str]] = {
    table: frozenset(topics.split())
    for table, topics in {
        "adapter_pins": "memory",
        "adapters": "adapters",
        "adapter_versions": "adapters",
        "adapter_probes": "adapters",
        "adapter_probe_prompts": "adapters",
        "adapter_aliases": "adapters rollouts",
        "alias_changes": "rollouts",
        "rollouts": "rollouts",
        "shadow_answers": "rollouts",
        "service_minutes": "service",
        "audit_logs": "audit",
        "credit_grants": "budgets",
        "account_budgets": "budgets",
        "evaluations": "evaluations",
        "evaluation_answers": "evaluations",
        "events": "events",
        "invoices": "invoices",
        "invoice_payments": "invoices",
        "ledger_transactions": "ledger",
        "memberships": "people",
        "people": "people",
        "invitations": "people",
        "plans": "plans",
        "prices": "prices",
        "price_versions": "prices",
        "reconciliations": "reconciliation",
        "canary_rounds": "reconciliation",
        "kept_contents": "requests",
        "rejected_calls": "rejections",
        "usage_events": "requests usage",
        "occupancy_events": "usage",
        "tenant_settings": "settings",
        "billing_settings": "settings",
        "billing_profiles": "settings",
        "tenants": "tenants",
        "uploads": "uploads",
        "wait_minutes": "waits",
        "share_minutes": "waits",
        "upload_parts": "uploads",
        "webhook_endpoints": "webhooks",
        "webhook_deliveries": "webhooks",
    }.items()
}

SILENT = frozenset(
    {
        # What is noted at every use of a key; their changes are in the audit log.
        "api_keys",
        "admin_keys",
        "sessions",
        "signing_keys",
        # What follows from other tables, or is nobody's to see.
        "audit_heads",
        "audit_verified",
        "canaries",
        "canary_answers",
        "database_identity",
        "engine_hours",
        "engine_minutes",
        "engine_outboxes",
        "engine_totals",
        "evaluation_items",
        "gap_minutes",
        "history_marks",
        "idempotency_keys",
        "invoice_lines",
        "invoice_numbers",
        "invoice_usage",
        "jobs",
        "late_ratings",
        "ledger_accounts",
        "ledger_balances",
        "ledger_due",
        "ledger_entries",
        "moved_days",
        "request_wait_parts",
        "request_waits",
        "service_hours",
        "stored_responses",
        "tenant_plans",
        "tenant_taxes",
        "unrated_events",
        "usage_archives",
        "usage_days",
        "usage_dead_letters",
        "usage_hours",
        "usage_series",
        "usage_volumes",
        "wait_marks",
        "webhook_queue",
    }
)
"""Tables whose rows change without a word."""

_BY_ACTION: Mapping[str, frozenset[str]] = {
    kind: frozenset(topics.split())
    for kind, topics in {
        "adapter": "adapters",
        "adapter_alias": "adapters rollouts",
        "adapter_probe_prompts": "adapters",
        "adapter_version": "adapters",
        "admin_key": "admin_keys",
        "api_key": "keys",
        "contents": "requests",
        "account_budget": "budgets",
        "credit": "budgets",
        "evaluation": "evaluations",
        "invitation": "people",
        "invoice": "invoices",
        "ledger": "ledger",
        "member": "people",
        "plan": "plans",
        "price_version": "prices",
        "rollout": "rollouts adapters",
        "session": "people",
        "settings": "settings",
        "billing_profile": "settings",
        "billing_settings": "settings",
        "signing_key": "signing_keys",
        "tenant": "tenants",
        "usage": "usage",
        "webhook_delivery": "webhooks",
        "webhook_endpoint": "webhooks",
    }.items()
}


def topics_of_table(table: str) -> frozenset[str]:
    return BY_TABLE.get(table, frozenset())


def topics_of_action(action: str) -> frozenset[str]:
    """Of an entry of the audit log, `api_key.revoke` for example; of one of a new kind every topic,
    so that nobody looks at what is not so any more."""
    return _BY_ACTION.get(action.partition(".")[0], TOPICS)
