"""Runs over tenants: the invoices of one month, each tenant in a transaction of its own. A run may
be ended at any point and begun again; what is final stays, and two runs at once make each invoice
once."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.repository import price_lists
from tenora_platform.db import Database, plain_reason
from tenora_platform.errors import BadRequestError, ConflictError
from tenora_platform.invoices import repository
from tenora_platform.invoices.credit import credit_for
from tenora_platform.invoices.making import Maker
from tenora_platform.invoices.period import end_of, midnight, name_of
from tenora_platform.invoices.price_lists import read_price_versions
from tenora_platform.invoices.repository import Invoiced
from tenora_platform.invoices.tables import BillingSettingsRow, InvoiceRow
from tenora_platform.ledger.poster import post_due
from tenora_platform.ledger.service import Ledger, lock_money
from tenora_platform.task_groups import task_group

BATCH = 200  # tenants
AT_ONCE = 4  # transactions; each waits for the database most of its time
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Wanted:
    """`draft` None: final once the days of grace are over, else a draft. `after`: the tenant that a
    run before got to."""

    period: date
    tenant_id: str | None = None
    draft: bool | None = None
    after: str = ""


@dataclass
class Report:
    """What a run did. `next_after`: where the next one goes on; None when it is through."""

    final: bool
    looked: int = 0  # tenants
    made: list[InvoiceRow] = field(default_factory=list)
    unchanged: int = 0
    empty: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)  # tenant, reason
    next_after: str | None = None


@dataclass(frozen=True)
class InvoiceRuns:
    """`now` is the time that counts as the present."""

    db: Database
    ledger: Ledger
    audit: AuditLog
    actor: str
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def run(self, wanted: Wanted, *, most_s: float | None = None) -> Report:
        """For every tenant that there was, or for `most_s` seconds. One that cannot be invoiced is
        named in the report and keeps no other from it. Raises BadRequestError for a month that has
        not begun, ConflictError for a final invoice of one that still runs."""
        now = self.now()
        async with self.db.admin_session() as session:
            settings = await repository.settings(session)
            versions = await read_price_versions(session)
            prices = Prices(await price_lists(session))
        final = _is_final(wanted, settings, now)
        report = Report(final=final)
        maker = Maker(
            ledger=self.ledger,
            audit=self.audit,
            actor=self.actor,
            period=wanted.period,
            now=now,
            settings=settings,
            versions=versions,
            prices=prices,
        )
        ends_s = math.inf if most_s is None else time.monotonic() + most_s
        after = wanted.after
        while True:
            batch, after = await self._next(maker, wanted, after, report)
            left = await self._run_batch(maker, batch, report, ends_s)
            if left:
                report.looked -= len(left)
                report.next_after = batch[-len(left) - 1].id
                return report
            if not after:
                return report
            if time.monotonic() >= ends_s:
                report.next_after = after
                return report

    async def count(self, wanted: Wanted) -> int:
        """How many tenants a run looks at."""
        async with self.db.admin_session() as session:
            return await repository.count_customers(
                session, end_of(wanted.period), only=wanted.tenant_id
            )

    async def is_final(self, wanted: Wanted) -> bool:
        """Whether a run that begins now makes final invoices. Raises BadRequestError and
        ConflictError, as `run` does."""
        async with self.db.admin_session() as session:
            settings = await repository.settings(session)
        return _is_final(wanted, settings, self.now())

    async def _next(
        self, maker: Maker, wanted: Wanted, after: str, report: Report
    ) -> tuple[list[Invoiced], str]:
        """The next tenants that may need an invoice, and the last one looked at ("": of all)."""
        async with self.db.admin_session() as session:
            found = await repository.customers(
                session,
                end_of(wanted.period),
                after=after,
                limit=BATCH,
                only=wanted.tenant_id,
            )
            done = await repository.finals(session, [each.id for each in found], wanted.period)
        currencies = set(maker.versions.currencies())
        left = [each for each in found if not currencies <= done.get(each.id, set())]
        report.looked += len(found)
        report.unchanged += len(found) - len(left)
        due = [each for each in left if each.used or maker.asks_minimum(each)]
        report.empty += len(left) - len(due)
        return due, found[-1].id if len(found) == BATCH else ""

    async def _run_batch(
        self, maker: Maker, batch: Sequence[Invoiced], report: Report, ends_s: float
    ) -> list[Invoiced]:
        """A few at once, each a transaction; returns those that were not begun in time. The first
        is begun in any case."""
        waiting = deque(batch)

        async def work() -> None:
            while waiting and (len(waiting) == len(batch) or time.monotonic() < ends_s):
                tenant = waiting.popleft()
                try:
                    await self._run_tenant(maker, tenant, report)
                except (SQLAlchemyError, ArithmeticError, ValueError, LookupError) as error:
                    _log.exception("invoice could not be made", tenant=tenant.id)
                    report.failed.append((tenant.id, plain_reason(error)))

        async with task_group() as group:
            for _ in range(min(AT_ONCE, len(batch))):
                group.create_task(work())
        return list(waiting)

    async def _run_tenant(self, maker: Maker, tenant: Invoiced, report: Report) -> None:
        made: list[InvoiceRow] = []
        unchanged = False
        async with self.db.admin_session() as session:
            await lock_money(session, tenant.id)
            await post_due(session, self.ledger, tenant.id, maker.now)
            there = await repository.of_period(session, tenant.id, maker.period)
            credit = await self._credit(session, maker, tenant, keep=report.final)
            for currency in maker.versions.currencies():
                found = {row.status: row for row in there.get(currency, ())}
                if "final" in found:
                    unchanged = True
                    continue
                row = await maker.make(
                    session,
                    tenant,
                    currency,
                    credit=credit.get(currency, Decimal(0)),
                    draft=found.get("draft"),
                    final=report.final,
                )
                if row is not None:
                    made.append(row)
        report.made += made
        report.unchanged += unchanged
        report.empty += not made and not unchanged

    async def _credit(
        self, session: AsyncSession, maker: Maker, tenant: Invoiced, *, keep: bool
    ) -> dict[str, Decimal]:
        if not tenant.credited:
            return {}
        return await credit_for(
            session,
            self.ledger,
            tenant.id,
            maker.versions.currencies(),
            until=midnight(end_of(maker.period)),
            now=maker.now,
            keep=keep,
        )


def _is_final(wanted: Wanted, settings: BillingSettingsRow, now: datetime) -> bool:
    """Raises BadRequestError and ConflictError."""
    month = name_of(wanted.period)
    if midnight(wanted.period) > now:
        raise BadRequestError(f"The month {month} has not started yet.", param="period")
    over = midnight(end_of(wanted.period))
    if wanted.draft is False and over > now:
        raise ConflictError(
            f"The month {month} has not ended yet; until then only a draft can be made "
            "(draft: true).",
            param="draft",
            code="period_not_over",
        )
    return grace_is_over(wanted.period, settings, now) if wanted.draft is None else not wanted.draft


def grace_is_over(period: date, settings: BillingSettingsRow, now: datetime) -> bool:
    """Whether a month is to be made final: what comes now is late."""
    return midnight(end_of(period)) + timedelta(days=settings.grace_days) <= now
