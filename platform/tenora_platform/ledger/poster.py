"""Brings the ledger up to the sums of usage: what a day's sums have beyond what was posted of that
day is posted, so it does not matter how often, by whom or after what crash. It knows no prices."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.db import Database, plain_reason
from tenora_platform.ledger import due
from tenora_platform.ledger.accounts import UNBILLED
from tenora_platform.ledger.repository import count_of_day
from tenora_platform.ledger.service import Entry, Ledger, lock_money
from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.outages import is_own_fault

EVERY_S = 10.0
RUNNING_DAY_EVERY = timedelta(minutes=15)
"""A day that runs is posted no more often: every ten seconds would be 8,640 transactions of a
tenant."""
USAGE = "usage"
BATCH = 1000  # days of one round
AT_ONCE = 4  # tenants; each transaction waits for the database most of its time
_log = structlog.get_logger(__name__)


class Poster:
    """One runs in each worker. Several do no harm: a tenant's lock keeps them apart, and who comes
    second finds the mark gone."""

    def __init__(self, db: Database, ledger: Ledger) -> None:
        self._db = db
        self._ledger = ledger

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                while await self.run_once() == BATCH:
                    pass
            except (SQLAlchemyError, OSError) as error:
                _log.warning("ledger is late", reason=plain_reason(error), retry_s=EVERY_S)
            await asyncio.sleep(EVERY_S)

    async def run_once(self, now: datetime | None = None) -> int:
        """Post every day whose turn it is, a few tenants at once, each day in a transaction of its
        own; returns how many."""
        now = now or datetime.now(UTC)
        async with self._db.admin_session() as session:
            days = await due.days_due(
                session, today=now.date(), before=now - RUNNING_DAY_EVERY, limit=BATCH
            )
        by_tenant: dict[str, list[date]] = {}
        for tenant_id, day in days:
            by_tenant.setdefault(tenant_id, []).append(day)
        waiting = iter(by_tenant.items())

        async def work() -> None:
            for tenant_id, of_tenant in waiting:
                for day in of_tenant:
                    await self._post(tenant_id, day, now)

        working = [asyncio.create_task(work()) for _ in range(min(AT_ONCE, len(by_tenant)))]
        try:
            await asyncio.gather(*working)
        finally:  # nobody goes on behind the back of who tries again
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        return len(days)

    async def _post(self, tenant_id: str, day: date, now: datetime) -> None:
        try:
            async with self._db.admin_session() as session:
                await post_day(session, self._ledger, tenant_id, day, now)
        except Exception as error:  # one tenant's books must not stop the others'
            if isinstance(error, SQLAlchemyError) and not is_own_fault(error):
                raise
            _log.exception(
                "usage could not be posted to the ledger",
                tenant=tenant_id,
                day=str(day),
                reason=plain_reason(error),
            )


async def post_due(session: AsyncSession, ledger: Ledger, tenant_id: str, now: datetime) -> None:
    """All of a tenant's usage that is in the sums is in the ledger when this commits."""
    await lock_money(session, tenant_id)
    for day in await due.days_of(session, tenant_id):
        await post_day(session, ledger, tenant_id, day, now)


async def post_day(
    session: AsyncSession, ledger: Ledger, tenant_id: str, day: date, now: datetime
) -> list[LedgerTransactionRow]:
    """Post what the day's sums have beyond the ledger, one transaction a currency.

    The mark is taken away first, and with it its lock: who is adding to the sums has it until they
    commit, and is waited for; who comes after that makes a new one."""
    await lock_money(session, tenant_id)
    if not await due.take_mark(session, tenant_id, day):
        return []
    wanted = await due.sums_of(session, tenant_id, day)
    posted = await due.posted_of(session, tenant_id, USAGE, day)
    number = await count_of_day(session, tenant_id, USAGE, day)
    made = []
    for currency in sorted({currency for currency, _ in (*wanted, *posted)}):
        entries = [
            Entry(account, -more)
            for account in sorted({name for each, name in (*wanted, *posted) if each == currency})
            if (more := _more(wanted, posted, (currency, account)))
        ]
        if not entries:
            continue
        number += 1
        total = exact_sum(-each.amount for each in entries)
        row = await ledger.post(
            session,
            tenant_id,
            kind=USAGE,
            reference=f"{day}:{number}",
            currency=currency,
            day=day,
            entries=[Entry(UNBILLED, total), *entries],
            created_at=now,
        )
        made.append(row)
    return made


async def take_back_usage(
    session: AsyncSession, ledger: Ledger, row: LedgerTransactionRow, note: str | None = None
) -> LedgerTransactionRow:
    """Reverse a posting of usage, once; what the sums say of its day is posted anew."""
    reversal = await ledger.reverse(session, row, note=note)
    await due.mark(session, row.tenant_id, row.day)
    return reversal


def _more(
    wanted: dict[tuple[str, str], Decimal],
    posted: dict[tuple[str, str], Decimal],
    key: tuple[str, str],
) -> Decimal:
    return exact_sum((wanted.get(key, Decimal(0)), -posted.get(key, Decimal(0))))
