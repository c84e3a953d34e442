"""Tells a tenant when its account budget's thresholds are reached: one event for each threshold
and month, whichever process finds it and however often the budget is rewritten. By the books alone,
so that neither a restart nor an emptied Redis tells it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.budgets.accounts import month_start, next_month
from tenora_platform.budgets.news import PERCENT, most_told
from tenora_platform.budgets.tables import AccountBudgetRow
from tenora_platform.db import Database
from tenora_platform.events import repository as events
from tenora_platform.outages import OWN_FAULT
from tenora_platform.tenants.ranks import AMOUNT
from tenora_platform.usage.service import money
from tenora_platform.usage.tables import UsageDayRow

ALERT = "budget.alert"
TICK_S = 1.0
SWEEP_S = 300.0
"""So often everybody is looked at: who died between booking and telling, and usage that had waited
for a price, are heard of by nobody."""
_LATE = timedelta(hours=1)  # so long after a month's end its last usage may be stored
_BATCH = 200
_TOLD_MAX = 100_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """The spending of one month against an account budget, in the budget's currency."""

    budget: AccountBudgetRow
    month: datetime  # its first moment
    spent: Decimal

    @property
    def reached(self) -> list[int]:
        """Thresholds, the lowest first."""
        percent = 100 * Fraction(self.spent) / Fraction(self.budget.amount)
        return sorted(each for each in self.budget.thresholds if percent >= each)

    @property
    def period(self) -> str:
        return f"{self.month:%Y-%m}"

    def level(self, threshold: int) -> Decimal:
        """From how much spending on it is reached."""
        return self.budget.amount * threshold / 100

    def once(self, threshold: int) -> str:
        """Return the key that makes the event unique; a changed amount makes a new one, which is
        used where more than was told of is spent."""
        amount = f"{money(self.budget.amount)} {self.budget.currency}"
        return f"{self.period} {amount} {threshold}"

    def told(self, threshold: int) -> dict[str, object]:
        """The event's data."""
        return {
            "budget": "account_month",
            "period": self.period,
            "threshold": threshold,
            "amount": money(self.budget.amount),
            "currency": self.budget.currency,
            "spent": money(self.spent),
            "hard": self.budget.hard,
            "resets_at": next_month(self.month).isoformat(),
        }


async def standings(
    session: AsyncSession, month: datetime, tenant_ids: Sequence[str]
) -> list[Standing]:
    """Return the standings of those of these tenants that have a budget."""
    spent = (
        select(func.sum(AMOUNT))
        .join(PriceVersionRow, PriceVersionRow.no == UsageDayRow.price_version_no)
        .where(
            UsageDayRow.tenant_id == AccountBudgetRow.tenant_id,
            UsageDayRow.day >= month.date(),
            UsageDayRow.day < next_month(month).date(),
            PriceVersionRow.currency == AccountBudgetRow.currency,
        )
        .correlate(AccountBudgetRow)
        .scalar_subquery()
    )
    query = select(AccountBudgetRow, func.coalesce(spent, 0)).where(
        AccountBudgetRow.tenant_id.in_(tenant_ids)
    )
    return [Standing(row, month, amount) for row, amount in await session.execute(query)]


async def tell(session: AsyncSession, standing: Standing) -> None:
    """In the session of the budget's tenant. However often a budget is rewritten, a threshold is
    told only where the events of this month have told neither of as much spending nor of as large a
    part of the amount."""
    if not standing.reached:
        return
    tenant_id, currency = standing.budget.tenant_id, standing.budget.currency
    spent = await most_told(session, tenant_id, ALERT, standing.period, currency)
    part = await most_told(session, tenant_id, ALERT, standing.period, currency, what=PERCENT)
    for threshold in standing.reached:
        if spent >= standing.level(threshold) and part >= threshold:
            continue
        await events.add(
            session,
            tenant_id=tenant_id,
            type=ALERT,
            once=standing.once(threshold),
            data=standing.told(threshold),
        )


class AccountAlerts:
    """Hears who has spent; `run` it in a worker. Several may."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._touched: set[str] = set()
        self._told: set[tuple[str, str]] = set()

    def touch(self, tenant_ids: Iterable[str]) -> None:
        """Note that the spending of these tenants has changed."""
        self._touched.update(tenant_ids)

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        next_sweep = time.monotonic()
        while True:
            try:
                await self.look()
                if time.monotonic() >= next_sweep:
                    await self.sweep()
                    next_sweep = time.monotonic() + SWEEP_S
            except (SQLAlchemyError, OSError) as error:
                _log.warning("account budgets could not be looked at", reason=str(error))
            await asyncio.sleep(TICK_S)

    async def look(self, now: datetime | None = None) -> None:
        """At those that were touched."""
        touched, self._touched = self._touched, set()
        try:
            await self._look_at(sorted(touched), now or datetime.now(UTC))
        except BaseException:
            self._touched |= touched
            raise

    async def sweep(self, now: datetime | None = None) -> None:
        """At everybody's, some after some."""
        now, after = now or datetime.now(UTC), ""
        while True:
            query = select(AccountBudgetRow.tenant_id).where(AccountBudgetRow.tenant_id > after)
            query = query.order_by(AccountBudgetRow.tenant_id).limit(_BATCH)
            async with self._db.admin_session() as session:
                found = list(await session.scalars(query))
            if not found:
                return
            await self._look_at(found, now)
            after = found[-1]

    async def _look_at(self, tenant_ids: Sequence[str], now: datetime) -> None:
        if not tenant_ids:
            return
        found: list[Standing] = []
        async with self._db.admin_session() as session:
            for month in sorted({month_start(now - _LATE), month_start(now)}):
                found += [
                    each
                    for each in await standings(session, month, tenant_ids)
                    if each.budget.updated_at < next_month(month)  # what is set now is for now on
                ]
        for each in found:
            tenant_id = each.budget.tenant_id
            new = {(tenant_id, each.once(threshold)) for threshold in each.reached}
            if new <= self._told:
                continue
            try:
                async with self._db.tenant_session(tenant_id) as session:  # who listens is told
                    await tell(session, each)
            except OWN_FAULT as error:
                _log.error("budget alert given up", tenant=tenant_id, exc_info=error)
            if len(self._told) > _TOLD_MAX:
                self._told.clear()
            self._told |= new
