"""Counters out of the books: what has been spent of each account, in one snapshot of PostgreSQL, so
that whatever is told meanwhile is neither lost nor doubled. Decides nothing about requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    r":(?P<currency>[A-Z]{3})"
)
_CREDIT = re.compile(rf"{CREDIT}:([A-Z]{{3}})")


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
            credits = await _credits(session, tenant_id, accounts, now)
            spent = {
                account: await repository.spent(session, tenant_id, span_of(account, credits))
                for account in accounts
            }
            lately = await repository.lately_stored(session, tenant_id, within=LATELY, ids=pending)
        snapshot = Snapshot(
            before_ms=before_ms,
            spent=spent,
            lately=lately,
            oldest=month_start(month_start(now) - timedelta(days=1)),
            credits={
                currency: (nanos_within(each.cap), each.since, each.until)
                for currency, each in credits.items()
            },
        )
        return await self._store.seed(tenant_id, snapshot, mend=mend)

    async def spent(self, tenant_id: str, accounts: Sequence[str], now: datetime) -> dict[str, int]:
        """The books alone, while Redis is away: nanos by account, and `credit_cap:` by currency."""
        found: dict[str, int] = {}
        async with self._db.tenant_session(tenant_id) as session:
            credits = await _credits(session, tenant_id, accounts, now)
            for account in accounts:
                found[account] = await repository.spent(
                    session, tenant_id, span_of(account, credits)
                )
        caps = {f"credit_cap:{of}": nanos_within(each.cap) for of, each in credits.items()}
        return found | caps


async def _credits(
    session: AsyncSession, tenant_id: str, accounts: Sequence[str], now: datetime
) -> dict[str, Credit]:
    """By currency, of those accounts that are of credit."""
    asked = [match[1] for each in accounts if (match := _CREDIT.fullmatch(each))]
    return {each: await credit_of(session, tenant_id, now, each) for each in asked}


async def one_snapshot(session: AsyncSession) -> None:
    """All that this session reads is of one moment. Call it first."""
    await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})


def is_account(name: str) -> bool:
    """Whether a counter's name is one that we give."""
    if _CREDIT.fullmatch(name):
        return True
    try:
        span_of(name, {})
    except ValueError:
        return False
    return True


def span_of(account: str, credits: Mapping[str, Credit]) -> Span:
    """Which events an account has; `credits` by currency. Raises ValueError for a name that is
    none."""
    of_credit = _CREDIT.fullmatch(account)
    if of_credit is not None and of_credit[1] in credits:
        return Span(of_credit[1], credits[of_credit[1]].since)
    match = _ACCOUNT.fullmatch(account)
    if match is None:
        raise ValueError(f"{account!r} is no account")
    if match["span"] == "d":
        day = datetime.strptime(match["period"], "%Y-%m-%d").replace(tzinfo=UTC)
        end = day_start(day + timedelta(days=1))
        return Span(match["currency"], day, end, match["key"])
    month = datetime.strptime(match["period"], "%Y-%m").replace(tzinfo=UTC)
    return Span(match["currency"], month, next_month(month), match["key"])
