"""Makes months final by itself, where the operator has said so: once a month's days of grace are
over. Several workers do no harm: a tenant's lock keeps them apart, and what is final stays."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.db import plain_reason
from tenora_platform.errors import ApiError
from tenora_platform.invoices import repository
from tenora_platform.invoices.period import before, month_of, name_of
from tenora_platform.invoices.runs import InvoiceRuns, Wanted, grace_is_over
from tenora_platform.state import AppState

EVERY_S = 900.0
MONTHS_BACK = 3
"""How many finished months are looked at: so long a worker may have been away."""
_ACTOR = "worker:invoices"
_log = structlog.get_logger(__name__)


class InvoiceWorker:
    """One runs in each worker."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                await self.run_once(datetime.now(UTC))
            except (SQLAlchemyError, OSError, ApiError) as error:
                _log.warning("invoices are late", reason=plain_reason(error), retry_s=EVERY_S)
            await asyncio.sleep(EVERY_S)

    async def run_once(self, now: datetime) -> int:
        """How many invoices it made: of the months whose grace is over, the oldest first."""
        state = self._state
        runs = InvoiceRuns(state.db, state.ledger, state.audit, _ACTOR, now=lambda: now)
        async with state.db.admin_session() as session:
            settings = await repository.settings(session)
        if not settings.automatic:
            return 0
        periods = [before(month_of(now))]
        while len(periods) < MONTHS_BACK:
            periods.append(before(periods[-1]))
        made = 0
        for period in reversed(periods):
            if not grace_is_over(period, settings, now):
                continue
            report = await runs.run(Wanted(period, draft=False))
            made += len(report.made)
            for tenant_id, reason in report.failed:
                _log.error("invoice could not be made", tenant=tenant_id, reason=reason)
            if report.made:
                _log.info("invoices made", period=name_of(period), count=len(report.made))
        state.metrics.invoices.labels("final").inc(made)
        return made
