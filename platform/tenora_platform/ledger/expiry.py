"""Looks for credit that the ledger does not have yet: grants of older versions, and those that have
expired since. One of the works of a worker; several do no harm."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.db import Database, plain_reason
from tenora_platform.ledger.credits import apply_credits, tenants_due
from tenora_platform.ledger.poster import post_due
from tenora_platform.ledger.service import Ledger
from tenora_platform.outages import is_own_fault

EVERY_S = 60.0
_BEGINNING = datetime.min.replace(tzinfo=UTC)
_log = structlog.get_logger(__name__)


class CreditKeeper:
    """Closes what has expired, whether or not its tenant asks for anything any more."""

    def __init__(self, db: Database, ledger: Ledger) -> None:
        self._db = db
        self._ledger = ledger

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                await self.run_once()
            except (SQLAlchemyError, OSError) as error:
                _log.warning(
                    "expiry of credit is late", reason=plain_reason(error), retry_s=EVERY_S
                )
            await asyncio.sleep(EVERY_S)

    async def run_once(self, now: datetime | None = None) -> int:
        """Returns for how many tenants there was something to do."""
        now = now or datetime.now(UTC)
        async with self._db.admin_session() as session:
            tenants = await tenants_due(session, now)
        for tenant_id in tenants:
            try:
                async with self._db.admin_session() as session:
                    # First what credit is to pay for, so that no account is below what it can be.
                    await post_due(session, self._ledger, tenant_id, now)
                    await apply_credits(session, self._ledger, tenant_id, _BEGINNING, now)
            except Exception as error:  # one tenant's books must not stop the others'
                if isinstance(error, SQLAlchemyError) and not is_own_fault(error):
                    raise
                _log.exception(
                    "expiry of credit could not be posted",
                    tenant=tenant_id,
                    reason=plain_reason(error),
                )
        return len(tenants)
