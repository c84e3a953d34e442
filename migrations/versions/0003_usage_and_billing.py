"""Usage events, prices, rated lines, and where bad records go. Ledger and invoices build on these.

Revision: 0003, after 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation, grant_shared, refuse_changes, roles

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_METERS = "('uncached_prefill', 'cached_prefill', 'output')"
_PER_MILLION = sa.Numeric(20, 6)
"""Six decimals for a million tokens: every amount is exact in NUMERIC(38, 12)."""


def upgrade() -> None:
    _create_usage_events()
    _create_dead_letters()
    _create_prices()
    _create_rated_lines()


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False)


def _create_usage_events() -> None:
    op.create_table(
        "usage_events",
        # "<request id>:<index>", made by the server from 80 random bits: unique over all tenants,
        # and nothing a tenant could choose or probe.
        sa.Column("event_id", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("api_key_id", sa.Text),
        sa.Column("model", sa.Text, nullable=False),  # the base model's id
        sa.Column("plan", sa.Text),
        sa.Column("adapter_version_id", sa.Text),
        sa.Column("adapter_digest", sa.Text),  # what really ran
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("tier", sa.Text, nullable=False),
        sa.Column("finish_reason", sa.Text, nullable=False),
        sa.Column("residency", sa.Text),
        sa.Column("queue_ms", sa.Double, nullable=False),
        sa.Column("adapter_load_ms", sa.Double, nullable=False),
        sa.Column("arrival_time", _TIME, nullable=False),
        sa.Column("first_token_time", _TIME),
        sa.Column("event_time", _TIME, nullable=False),  # when the sequence ended
        sa.Column("ingested_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint(
            "prompt_tokens >= 0 AND output_tokens >= 0 "
            "AND cached_tokens BETWEEN 0 AND prompt_tokens",
            name="meters",
        ),
        sa.UniqueConstraint("tenant_id", "event_id"),
    )
    op.create_index("ix_usage_events_tenant_time", "usage_events", ["tenant_id", "event_time"])
    op.create_index("ix_usage_events_time", "usage_events", ["event_time"])
    enable_tenant_isolation("usage_events", append_only=True)


def _create_dead_letters() -> None:
    # The operator's alone: a record that names no tenant cannot be shown to one.
    op.create_table(
        "usage_dead_letters",
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("record", JSONB, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("received_at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.execute(f"GRANT SELECT, INSERT ON usage_dead_letters TO {roles().admin_role}")
    refuse_changes("usage_dead_letters")


def _create_prices() -> None:
    op.create_table(
        "price_versions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("model", sa.Text),  # NULL = every base model
        sa.Column("plan", sa.Text),  # NULL = every plan
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("effective_from", _TIME, nullable=False),
        sa.Column("effective_to", _TIME),  # exclusive; NULL = until further notice
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint(
            "effective_to IS NULL OR effective_to > effective_from", name="effective_range"
        ),
        sa.CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
    )
    op.create_index(
        "uq_price_versions_scope_from",
        "price_versions",
        [sa.text("coalesce(model, '')"), sa.text("coalesce(plan, '')"), "effective_from"],
        unique=True,
    )
    grant_shared("price_versions")
    prices = op.create_table(
        "prices",
        sa.Column(
            "price_version_id", sa.Text, sa.ForeignKey("price_versions.id"), primary_key=True
        ),
        sa.Column("meter", sa.Text, primary_key=True),
        sa.Column("per_million", _PER_MILLION, nullable=False),
        sa.CheckConstraint(f"meter IN {_METERS}", name="meter"),
        sa.CheckConstraint("per_million >= 0", name="per_million"),
    )
    grant_shared("prices", append_only=True)
    first = "price_default"
    op.execute(
        "INSERT INTO price_versions (id, currency, effective_from) "
        f"VALUES ('{first}', 'USD', '2020-01-01T00:00:00Z')"
    )
    op.bulk_insert(
        prices,
        [
            {"price_version_id": first, "meter": "uncached_prefill", "per_million": "0.10"},
            {"price_version_id": first, "meter": "cached_prefill", "per_million": "0.02"},
            {"price_version_id": first, "meter": "output", "per_million": "0.40"},
        ],
    )


def _create_rated_lines() -> None:
    event = ["usage_events.tenant_id", "usage_events.event_id"]
    op.create_table(
        "rated_lines",
        sa.Column("event_id", sa.Text, primary_key=True),
        sa.Column("meter", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("quantity", sa.BigInteger, nullable=False),
        sa.Column("per_million", _PER_MILLION, nullable=False),
        sa.Column("price_version_id", sa.Text, sa.ForeignKey("price_versions.id"), nullable=False),
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("amount", sa.Numeric(38, 12), nullable=False),
        sa.Column("rated_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.ForeignKeyConstraint(["tenant_id", "event_id"], event),
        sa.CheckConstraint(f"meter IN {_METERS}", name="meter"),
        sa.CheckConstraint("quantity > 0", name="quantity"),
        sa.CheckConstraint("amount * 1000000 = quantity * per_million", name="amount"),
    )
    op.create_index("ix_rated_lines_tenant_id", "rated_lines", ["tenant_id"])
    enable_tenant_isolation("rated_lines", append_only=True)
    # Events without a price, until there is one: nothing is ever charged at a guess.
    op.create_table(
        "unrated_events",
        sa.Column("event_id", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since", _TIME, nullable=False, server_default=sa.func.now()),
        sa.ForeignKeyConstraint(["tenant_id", "event_id"], event),
    )
    enable_tenant_isolation("unrated_events")
