"""For how long rows are kept that nobody changes and nothing adds up: a rule for each table, and
the sweep that enforces them. docs/privacy.md says the same in words. Books and evidence have no
rule."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import CursorResult, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from tenora_platform.db import Database, plain_reason
from tenora_platform.ids import first_id
from tenora_platform.locks import try_lock

EVERY_S = 3600.0
AT_ONCE = 2000
_LOCK = "retention"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rule:
    """Rows of `table` whose ids, which begin with `kind`, were made more than `days` ago and for
    which `unless` does not hold. In their order: one may refer to another."""

    table: str
    kind: str
    days: int
    unless: str = "false"


RULES = (
    Rule("webhook_deliveries", "delivery", 30, unless="state = 'waiting'"),
    Rule(
        "events",
        "evt",
        90,
        unless="EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.event_id = events.id) "
        "OR EXISTS (SELECT 1 FROM webhook_queue q WHERE q.event_id = events.id)",
    ),
    Rule(
        "webhook_endpoints",
        "webhook",
        90,
        unless="deleted_at IS NULL OR deleted_at > now() - interval '90 days' "
        "OR EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.endpoint_id = webhook_endpoints.id)",
    ),
    Rule(
        "uploads",
        "upload",
        30,
        unless="status IN ('pending', 'receiving', 'completed') "
        "OR EXISTS (SELECT 1 FROM upload_parts p WHERE p.upload_id = uploads.id) "
        "OR EXISTS (SELECT 1 FROM adapter_versions v WHERE v.upload_id = uploads.id "
        "AND v.staging_key IS NOT NULL)",
    ),
    Rule(
        "alias_changes",
        "change",
        400,
        unless="no >= (SELECT min(last.no) FROM (SELECT c.no FROM alias_changes c "
        "WHERE c.tenant_id = alias_changes.tenant_id AND c.adapter_id = alias_changes.adapter_id "
        "AND c.alias = alias_changes.alias "
        "ORDER BY c.no DESC LIMIT 50) AS last)",
    ),
)


async def keep_swept(db: Database) -> None:
    """Works for ever, at once and then every hour; one of all workers at a time."""
    while True:
        try:
            async with db.admin_session() as guard:
                if await try_lock(guard, _LOCK):
                    await sweep(db)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("old rows could not be removed", reason=plain_reason(error))
        await asyncio.sleep(EVERY_S)


async def sweep(db: Database, now: datetime | None = None) -> dict[str, int]:
    """How many rows of each table are gone. In small transactions: it may be ended at any point. A
    table whose rows are still referred to does not keep those behind it."""
    now, gone = now or datetime.now(UTC), dict[str, int]()
    for rule in RULES:
        try:
            gone[rule.table] = await _sweep(db, rule, now)
        except IntegrityError as error:
            _log.error("old rows remain", table=rule.table, reason=plain_reason(error))
    if any(gone.values()):
        _log.info("old rows removed", **{table: rows for table, rows in gone.items() if rows})
    return gone


async def _sweep(db: Database, rule: Rule, now: datetime) -> int:
    before, after, total = first_id(rule.kind, now - timedelta(days=rule.days)), "", 0
    look = text(
        f"SELECT id FROM {rule.table} WHERE id > :after AND id < :before ORDER BY id LIMIT :most"
    )
    remove = text(f"DELETE FROM {rule.table} WHERE id = any(:ids) AND NOT ({rule.unless})")
    while True:
        async with db.admin_session() as session:
            values = {"after": after, "before": before, "most": AT_ONCE}
            ids = list(await session.scalars(look, values))
            if not ids:
                return total
            found = await session.execute(remove, {"ids": ids})
            assert isinstance(found, CursorResult)
            total, after = total + found.rowcount, ids[-1]
