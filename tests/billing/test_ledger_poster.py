"""The poster: whatever is counted, crashes or runs twice, the ledger comes to what the sums say."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from ledger_books import NOW, Books, Key, new_books
from tenora_platform.db import Database
from tenora_platform.ledger import poster
from tenora_platform.ledger.poster import Poster, post_day, post_due, take_back_usage
from tenora_platform.ledger.service import Ledger
from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.ledger.verify import problems

TODAY = NOW.date()
DAY = date(2026, 11, 5)
CENT = Decimal("0.010000000001")


@pytest.fixture
async def books(db: Database, ledger: Ledger) -> Books:
    return await new_books(db, ledger, ("USD", "EUR"))


async def wanted(books: Books) -> dict[Key, Decimal]:
    """By the sums, of all days."""
    found: dict[Key, Decimal] = defaultdict(Decimal)
    for currency, meter, amount in await books.rows(
        """
        select v.currency, d.meter, d.amount from usage_day_meters d
        join price_versions v on v.no = d.price_version_no
        where d.tenant_id = :tenant and d.meter not in ('requests', 'sequences', 'charged_nanos')
        """
    ):
        found[currency, f"revenue:{meter}"] -= amount
        found[currency, "unbilled"] += amount
    return {key: amount for key, amount in found.items() if amount}


async def right(books: Books) -> None:
    """Nothing is due, the ledger is what the sums are, and the chain holds."""
    assert await books.rows("select day from ledger_due where tenant_id = :tenant") == []
    assert await books.totals() == await books.balances() == await wanted(books)
    async with books.db.admin_session() as session:
        assert [each async for each in problems(session, books.ledger.chain, books.tenant_id)] == []


async def test_what_was_used_is_posted(books: Books) -> None:
    await books.used(DAY, "USD", "output", CENT)
    await books.used(DAY, "USD", "cached_prefill", CENT)
    await books.used(DAY, "EUR", "cold_load", 2 * CENT)
    await books.used(TODAY, "USD", "stored", CENT)
    await Poster(books.db, books.ledger).run_once(NOW)
    await right(books)
    assert [each[1:] for each in await books.transactions()] == [
        ("usage", "2026-11-05:1"),
        ("usage", "2026-11-05:2"),
        ("usage", "2026-11-20:1"),
    ]
    await books.used(DAY, "USD", "output", -CENT)  # a price that was wrong, say
    await Poster(books.db, books.ledger).run_once(NOW)
    await right(books)


async def test_what_has_no_price_costs_nothing(books: Books) -> None:
    free = Books(books.db, books.ledger, books.tenant_id, books.series, {"USD": 0})
    await free.used(DAY, "USD", "output", Decimal(0))
    await Poster(books.db, books.ledger).run_once(NOW)
    await right(books)
    assert await books.transactions() == []


async def test_a_day_that_runs_is_posted_now_and_then(books: Books) -> None:
    poster = Poster(books.db, books.ledger)
    for minutes, posted in ((0, 1), (5, 1), (14, 1), (16, 2), (17, 2)):
        await books.used(TODAY, "USD", "output", CENT)
        await poster.run_once(NOW + timedelta(minutes=minutes))
        assert len(await books.transactions()) == posted, minutes
    await poster.run_once(NOW + timedelta(days=1))  # it has ended
    await right(books)
    await books.used(TODAY, "USD", "output", CENT)
    async with books.db.admin_session() as session:
        await post_due(session, books.ledger, books.tenant_id, NOW)  # whoever must know
    await right(books)


async def test_a_posting_that_was_wrong_is_taken_back_and_made_anew(books: Books) -> None:
    await books.used(DAY, "USD", "output", CENT)
    poster = Poster(books.db, books.ledger)
    await poster.run_once(NOW)
    async with books.db.admin_session() as session:
        row = await session.get(LedgerTransactionRow, await only_id(books))
        assert row is not None
        await take_back_usage(session, books.ledger, row)
    assert await books.totals() == {}
    await poster.run_once(NOW)
    await right(books)
    assert [each[2] for each in await books.transactions()] == [
        f"{DAY}:1",
        f"{DAY}:1:reversed",
        f"{DAY}:2",
    ]


async def only_id(books: Books) -> str:
    ((found,),) = await books.rows("select id from ledger_transactions where tenant_id = :tenant")
    return str(found)


async def test_posters_and_sinks_at_once(books: Books) -> None:
    """Four that count, in transactions that take a while, and three that post."""
    days = [DAY + timedelta(days=number) for number in range(3)]

    async def count(meter: str) -> None:
        for number in range(12):
            async with books.db.admin_session() as session:
                for day in days[: number % 3 + 1]:  # in order, as the sink does
                    await books.use(session, day, "USD", meter, CENT * (number + 1))
                    await asyncio.sleep(0.001)

    async def post() -> None:
        for _ in range(15):
            await Poster(books.db, books.ledger).run_once(NOW)
            await asyncio.sleep(0.002)

    meters = ("output", "cached_prefill", "stored", "cold_load")
    await asyncio.gather(*(count(meter) for meter in meters), *(post() for _ in range(3)))
    await Poster(books.db, books.ledger).run_once(NOW)
    await right(books)


@pytest.mark.parametrize("waits", ["the sink", "the poster"])
async def test_neither_misses_what_the_other_is_about_to_commit(books: Books, waits: str) -> None:
    await books.used(DAY, "USD", "output", CENT)
    if waits == "the poster":  # for the sink's mark
        async with books.db.admin_session() as sink:
            await books.use(sink, DAY, "USD", "output", CENT)
            posting = asyncio.create_task(post_alone(books))
            await asyncio.sleep(0.05)
            assert not posting.done()
        await posting
        await right(books)
        return
    async with books.db.admin_session() as session:
        await post_day(session, books.ledger, books.tenant_id, DAY, NOW)
        counting = asyncio.create_task(books.used(DAY, "USD", "output", CENT))
        await asyncio.sleep(0.05)
        assert not counting.done()
    await counting
    assert await books.rows("select day from ledger_due where tenant_id = :tenant") == [(DAY,)]
    await post_alone(books)
    await right(books)


async def post_alone(books: Books) -> None:
    async with books.db.admin_session() as session:
        await post_day(session, books.ledger, books.tenant_id, DAY, NOW)


class KilledError(Exception):
    """The process ends here."""


@contextmanager
def killed_before(db: Database, statement: int) -> Iterator[list[str]]:
    """Nothing is sent from that statement on, on any connection. Gives what was sent."""
    sent: list[str] = []
    numbers = itertools.count(1)

    def before(conn: Any, cursor: Any, sql: str, *more: Any) -> None:
        if next(numbers) >= statement:
            raise KilledError
        sent.append(sql)

    engine = db._admin.sync_engine
    event.listen(engine, "before_cursor_execute", before)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", before)


async def test_killed_between_any_two_statements(db: Database, ledger: Ledger) -> None:
    """Each time somewhere else, and then again by the next worker: posted once."""
    for statement in itertools.count(1):
        books = await new_books(db, ledger, ("USD", "EUR"))
        await books.used(DAY, "USD", "output", CENT)
        await books.used(DAY, "EUR", "output", CENT)
        with killed_before(db, statement) as sent:
            try:
                async with db.admin_session() as session:
                    await post_day(session, ledger, books.tenant_id, DAY, NOW)
                whole = True
            except KilledError:
                whole = False
        assert bool(await books.transactions()) is whole
        await post_alone(books)
        await right(books)
        assert len(await books.transactions()) == 2
        if whole:
            assert statement > len(sent) > 10
            break


async def test_one_whose_books_cannot_be_posted_stops_nobody(
    books: Books, db: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await new_books(db, ledger)
    for each in (books, other):
        await each.used(DAY, "USD", "output", CENT)
    post = ledger.post

    async def broken(session: AsyncSession, tenant_id: str, **more: Any) -> Any:
        if tenant_id == books.tenant_id:
            raise LookupError("a surprise")
        return await post(session, tenant_id, **more)

    monkeypatch.setattr(ledger, "post", broken)
    await Poster(db, ledger).run_once(NOW)
    await right(other)
    assert await books.rows("select day from ledger_due where tenant_id = :tenant") == [(DAY,)]
    monkeypatch.undo()
    await Poster(db, ledger).run_once(NOW)
    await right(books)


async def test_a_day_that_cannot_be_posted_keeps_no_other(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same tenant, neither."""
    await books.used(DAY, "USD", "output", CENT)
    await books.used(TODAY, "USD", "output", CENT)
    monkeypatch.setattr(poster, "post_day", refusing(DAY, ValueError("not a number")))
    await Poster(books.db, books.ledger).run_once(NOW)
    assert [each[2] for each in await books.transactions()] == [f"{TODAY}:1"]


async def test_nothing_is_posted_behind_the_back_of_who_tries_again(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [await new_books(books.db, books.ledger, ("USD",)) for _ in range(poster.AT_ONCE)]
    for each in (books, *others):
        await each.used(DAY, "USD", "output", CENT)
    away = OperationalError("", None, ConnectionRefusedError())
    refuse, first = refusing(DAY, away), asyncio.Event()

    async def once(*values: Any) -> object:
        if not first.is_set():
            first.set()
            return await refuse(*values)
        return await asyncio.Event().wait()

    monkeypatch.setattr(poster, "post_day", once)
    before = asyncio.all_tasks()
    with pytest.raises(OperationalError):
        await Poster(books.db, books.ledger).run_once(NOW)
    assert asyncio.all_tasks() == before


def refusing(day: date, error: Exception) -> Callable[..., Awaitable[object]]:
    post_day = poster.post_day

    async def post(*values: Any) -> object:
        if day in values:
            raise error
        return await post_day(*values)

    return post
