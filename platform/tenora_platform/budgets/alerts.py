"""Tells a tenant when its account budget's thresholds are reached, and when a hard one refuses
nothing any more: one event for each threshold and month, whichever process finds it and however
often the budget is rewritten. By the books alone,
so that neither a restart nor an emptied Redis tells it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_book import PriceBook
from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.budgets.accounts import month_start, next_month
from tenora_platform.budgets.news import PERCENT, most_told
from tenora_platform.budgets.tables import AccountBudgetRow
from tenora_platform.db import Database
from tenora_platform.events import repository as events
from tenora_platform.outages import OWN_FAULT
from tenora_platform.tenants.ranks import AMOUNT
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.service import money
from tenora_platform.usage.tables import UsageDayRow

ALERT = "budget.alert"
UNBOUND = "budget.unbound"
"""A hard budget refuses nothing, because nothing is priced in its currency any more."""
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

    @property
    def once_unbound(self) -> str:
        return f"{self.period} {self.budget.currency}"

    def unbound(self, charged: Sequence[str]) -> dict[str, object]:
        """The event's data; the tenant's prices are in the currencies that it is `charged` in."""
        return {
            "budget": "account_month",
            "period": self.period,
            "amount": money(self.budget.amount),
            "currency": self.budget.currency,
            "spent": money(self.spent),
            "currencies": sorted(charged),
        }

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


async def tell_unbound(session: AsyncSession, standing: Standing, charged: Sequence[str]) -> None:
    """In the session of the budget's tenant; once in a month."""
    await events.add(
        session,
        tenant_id=standing.budget.tenant_id,
        type=UNBOUND,
        once=standing.once_unbound,
        data=standing.unbound(charged),
    )


class AccountAlerts:
    """Hears who has spent; `run` it in a worker. Several may."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._prices = PriceBook(db)
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
            new = {(each.budget.tenant_id, each.once(threshold)) for threshold in each.reached}
            await self._tell(each, new, partial(tell, standing=each))
        for each, charged in await self._unbound(found, now):
            told = partial(tell_unbound, standing=each, charged=charged)
            await self._tell(each, {(each.budget.tenant_id, f"unbound {each.once_unbound}")}, told)

    async def _unbound(
        self, found: Iterable[Standing], now: datetime
    ) -> list[tuple[Standing, list[str]]]:
        """Those of the present month that refuse nothing, with what the tenant is charged in."""
        hard = {
            each.budget.tenant_id: each
            for each in found
            if each.budget.hard and each.month == month_start(now)
        }
        if not hard:
            return []
        prices = await self._prices.lists()
        async with self._db.admin_session() as session:
            query = select(TenantRow.id, TenantRow.plan).where(TenantRow.id.in_(list(hard)))
            plans = [(id_, plan) for id_, plan in await session.execute(query)]
        charged = {id_: prices.currencies_of(id_, plan, now) for id_, plan in plans}
        return [
            (hard[id_], every)
            for id_, every in charged.items()
            if every and hard[id_].budget.currency not in every
        ]

    async def _tell(
        self,
        standing: Standing,
        new: set[tuple[str, str]],
        told: Callable[[AsyncSession], Awaitable[None]],
    ) -> None:
        if new <= self._told:
            return
        tenant_id = standing.budget.tenant_id
        try:
            async with self._db.tenant_session(tenant_id) as session:  # who listens is told
                await told(session)
        except OWN_FAULT as error:
            _log.error("budget alert given up", tenant=tenant_id, exc_info=error)
        if len(self._told) > _TOLD_MAX:
            self._told.clear()
        self._told |= new
