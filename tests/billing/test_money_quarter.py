"""A quarter of a tenant's money, whatever happens in it, against the plain model: costs, ledger,
invoices and what is left of credit agree to the last digit. TENORA_MONEY_HISTORIES: how many."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from money_histories import (
    GRACE,
    Announce,
    Give,
    History,
    Run,
    Use,
    histories,
)
from money_model import Grant
from money_platform import MoneyPlatform
from money_played import FIRST, GENERAL, Played, quarters
from money_prices_model import TOKENS, Event, PriceList, begin_of, next_month
from platform_fixtures import Servers
from tenora_platform.audit.service import AuditLog
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.service import Ledger
from tenora_platform.reconciliation.differences import Kind
from tenora_platform.reconciliation.proof import prove
from tenora_platform.reconciliation.task import Task

HISTORIES = int(os.environ.get("TENORA_MONEY_HISTORIES", "12"))
TENANTS = 200 if HISTORIES >= 1000 else 8


@pytest.fixture(scope="module")
async def money(servers: Servers, database_url: str) -> AsyncIterator[MoneyPlatform]:
    db = Database(database_urls(database_url, servers.secret, DEFAULT))
    made = MoneyPlatform(db, Ledger(servers.secret), AuditLog(servers.secret))
    (general,) = await made.rows("SELECT no FROM price_versions WHERE id = 'price_default'")
    made.names[general.no] = GENERAL.name
    yield made
    await db.close()


@settings(quarters, max_examples=HISTORIES)
@given(history=histories(FIRST))
async def test_a_quarter_agrees_with_the_model(money: MoneyPlatform, history: History) -> None:
    played = await Played.begin(money, history)
    for step in history.steps:
        await played.step(step)
    await played.check()


async def test_a_month_is_paid_by_what_credit_paid_of_it(money: MoneyPlatform) -> None:
    """A grant of 10 from the 10th on that expires on the 2nd of the next month, before the invoice
    is made: 2 were used before it, 3 and then 4 in its time. January's invoice has 3 of it."""
    begin = begin_of(FIRST)
    base = PriceList("base", begin, {("output", ""): ((0, Fraction(10**6)),)}, tenant="tenant")
    days = [datetime(2031, 1, 5, tzinfo=UTC), datetime(2031, 1, 20, tzinfo=UTC)]
    days.append(datetime(2031, 2, 1, tzinfo=UTC))
    events = [
        Event(f"e{count}", day, "tenant", {**dict.fromkeys(TOKENS, 0), "output": count})
        for day, count in zip(days, (2, 3, 4), strict=True)
    ]
    expires = datetime(2031, 2, 2, tzinfo=UTC)
    grant = Grant("g", Fraction(10), datetime(2031, 1, 10, tzinfo=UTC), expires=expires)
    steps = (
        Announce(now=begin, prices=base),
        Give(now=grant.created, grant=grant),
        Use(now=expires, events=tuple(events)),
        Run(now=next_month("2031-01") + GRACE, month="2031-01"),
        Run(now=next_month("2031-02") + GRACE, month="2031-02"),
    )
    played = await Played.begin(money, History(FIRST, Fraction(0), "USD", steps))
    for step in steps:
        await played.step(step)
    await played.check()
    assert [invoice.total for invoice in played.books.invoices] == [2, 0]


@settings(quarters, max_examples=1)
@given(several=st.lists(histories(FIRST, most=8), min_size=8, max_size=8))
async def test_many_tenants_in_one_quarter(money: MoneyPlatform, several: list[History]) -> None:
    """All on one clock, and each month one run for all of them: nobody's money moves another's,
    and the numbers of all invoices have no gap."""
    tenants = [await Played.begin(money, several[number % 8]) for number in range(TENANTS)]
    steps = [(step, played) for played in tenants for step in played.history.steps]
    run_for_all: set[str] = set()
    for step, played in sorted(steps, key=lambda each: each[0].now):
        if not isinstance(step, Run):
            await played.step(step)
        elif step.month not in run_for_all:
            run_for_all.add(step.month)
            await money.run(None, step.month, step.now)
            for each in tenants:
                each.books.run(step.month, step.now)
    for played in tenants:
        await played.check()
    numbers = await money.numbers()
    assert numbers == [f"INV-{number:06d}" for number in range(1, len(numbers) + 1)]


async def test_all_of_it_reconciles(money: MoneyPlatform, database_url: str) -> None:
    """Every layer of what was played above; but tenants were made and prices announced past the
    audit log, which their rows are compared with."""
    admin = database_urls(database_url, money.db.secret, DEFAULT).admin
    task = Task(
        database_url=admin.set(drivername="postgresql").render_as_string(hide_password=False),
        secret=money.db.secret.root,
        object_store="nowhere",
    )
    result = await asyncio.to_thread(prove, task)
    past_the_log = {Kind.PRICE_CHANGED, Kind.ACCOUNT_CHANGED}
    others = [each for each in result.named if each.kind not in past_the_log]
    assert others == []
    assert result.differences.keys() <= past_the_log
    assert min(result.looked.events, result.looked.occupancy_events, result.looked.invoices) > 0
