"""Counters out of the books: what has been spent of each account, in one snapshot of PostgreSQL, so
that whatever is told meanwhile is neither lost nor doubled. Decides nothing about requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.budgets import repository
from tenora_platform.budgets.accounts import (
    CREDIT,
    day_start,
    month_start,
    nanos_within,
    next_month,
)
from tenora_platform.budgets.credit import Credit, credit_of
from tenora_platform.budgets.repository import Span
from tenora_platform.budgets.store import BudgetStore, Correction, Snapshot
from tenora_platform.db import Database
from tenora_platform.usage.ids import is_event_text

LATELY = timedelta(minutes=2)
"""So long after an event was stored the sink may still be about to tell of it."""
_ACCOUNT = re.compile(
    r"(?:k:(?P<key>[A-Za-z0-9_-]+):)?(?P<span>[dm]):(?P<period>\d{4}-\d\d(?:-\d\d)?)"
)


class Seeder:
    """Reads with the tenant's own rights."""

    def __init__(self, db: Database, store: BudgetStore) -> None:
        self._db = db
        self._store = store

    async def seed(
        self, tenant_id: str, accounts: Sequence[str], now: datetime, *, mend: bool = False
    ) -> list[Correction]:
        """Make these accounts known; with `mend` put right what is known already, and say what was
        wrong. Raises RedisError or SQLAlchemyError while a server is away."""
        before_ms, told = await self._store.open(tenant_id)
        pending = [each for each in told if is_event_text(each)]
        async with self._db.tenant_session(tenant_id) as session:
            await one_snapshot(session)
            credit = await credit_of(session, tenant_id, now) if CREDIT in accounts else None
            spent = {
                account: await repository.spent(session, tenant_id, span_of(account, credit))
                for account in accounts
            }
            lately = await repository.lately_stored(session, tenant_id, within=LATELY, ids=pending)
        snapshot = Snapshot(
            before_ms=before_ms,
            spent=spent,
            lately=lately,
            oldest=month_start(month_start(now) - timedelta(days=1)),
            credit=(nanos_within(credit.cap), credit.since, credit.until) if credit else None,
        )
        return await self._store.seed(tenant_id, snapshot, mend=mend)

    async def spent(self, tenant_id: str, accounts: Sequence[str], now: datetime) -> dict[str, int]:
        """The books alone, while Redis is away: nanos by account, and `credit_cap`."""
        found: dict[str, int] = {}
        async with self._db.tenant_session(tenant_id) as session:
            for account in accounts:
                credit = await credit_of(session, tenant_id, now) if account == CREDIT else None
                found[account] = await repository.spent(
                    session, tenant_id, span_of(account, credit)
                )
                if credit is not None:
                    found["credit_cap"] = nanos_within(credit.cap)
        return found


async def one_snapshot(session: AsyncSession) -> None:
    """All that this session reads is of one moment. Call it first."""
    await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})


def is_account(name: str) -> bool:
    """Whether a counter's name is one that we give."""
    if name == CREDIT:
        return True
    try:
        span_of(name, None)
    except ValueError:
        return False
    return True


def span_of(account: str, credit: Credit | None) -> Span:
    """Which events an account has. Raises ValueError for a name that is none."""
    if account == CREDIT and credit is not None:
        return Span(credit.since)
    match = _ACCOUNT.fullmatch(account)
    if match is None:
        raise ValueError(f"{account!r} is no account")
    if match["span"] == "d":
        day = datetime.strptime(match["period"], "%Y-%m-%d").replace(tzinfo=UTC)
        return Span(day, day_start(day + timedelta(days=1)), match["key"])
    month = datetime.strptime(match["period"], "%Y-%m").replace(tzinfo=UTC)
    return Span(month, next_month(month), match["key"])
