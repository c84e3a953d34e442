"""What single requests waited, taken from the engine's usage records beside the books. It is no
part of what is billed: where it cannot be kept, it is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from tenora_engine.events import UsageRecord
from tenora_platform.db import Database, plain_reason
from tenora_platform.tenants.repository import erased_among
from tenora_platform.usage.ids import BadSequenceError, event_of_run
from tenora_platform.waits.tables import RequestWaitPartsRow, RequestWaitRow

KEPT_MS = 20.0
"""What waited less has nothing to be explained."""

_log = structlog.get_logger(__name__)


async def keep_request_waits(db: Database, records: Sequence[UsageRecord]) -> None:
    """Of those that have waited; never fails."""
    waited = [record for record in records if sum(part.ms for part in record.waits) >= KEPT_MS]
    if not waited:
        return
    try:
        rows = [row for record in waited if (row := _row(record)) is not None]
        async with db.admin_session() as session:
            erased = await erased_among(session, (tenant for _, tenant, _, _ in rows))
            rows = [row for row in rows if row[1] not in erased]
            causes = [{**key, "tenant_id": tenant, "causes": sums} for key, tenant, sums, _ in rows]
            parts = [{**key, "parts": parts} for key, _, _, parts in rows]
            for table, values in ((RequestWaitRow, causes), (RequestWaitPartsRow, parts)):
                if values:
                    await session.execute(insert(table).on_conflict_do_nothing(), values)
    except (SQLAlchemyError, OSError) as error:
        _log.warning("wait times of requests could not be stored", reason=plain_reason(error))


def _row(
    record: UsageRecord,
) -> tuple[dict[str, Any], str, dict[str, float], list[list[Any]]] | None:
    try:
        request, sequence = event_of_run(record.request_id, record.context, record.index).key
    except BadSequenceError:
        return None
    sums: defaultdict[str, float] = defaultdict(float)
    for part in record.waits:
        sums[part.cause] += part.ms
    named: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part in record.waits:
        named[part.cause, part.other] += part.ms
    largest = sorted(named.items(), key=lambda each: -each[1])
    parts = [[cause, other, round(ms, 3)] for (cause, other), ms in largest]
    key = {"request": request, "sequence": sequence}
    return key, record.tenant, {name: round(ms, 3) for name, ms in sums.items()}, parts
