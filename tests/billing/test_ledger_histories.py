"""Whatever happens to a tenant's money, in whatever order and at once: the ledger is what a model
of a few lines says, all its accounts together are 0, and the chain holds."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from credit_model import Given, Use, modelled
from ledger_books import Books, Key, new_books
from tenora_platform.budgets.grants import Grant, grant_credit
from tenora_platform.budgets.tables import GrantKind
from tenora_platform.db import Database
from tenora_platform.ids import new_id
from tenora_platform.ledger.balances import compare_balances, rebuild_balances
from tenora_platform.ledger.credits import apply_credits
from tenora_platform.ledger.expiry import CreditKeeper
from tenora_platform.ledger.poster import Poster, post_due, take_back_usage
from tenora_platform.ledger.service import Entry, Ledger
from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.ledger.verify import problems
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

BEGIN = datetime(2026, 9, 1, tzinfo=UTC)
UNIT = {"USD": Decimal("0.0000004"), "EUR": Decimal("0.000000000001"), "JPY": Decimal(1)}
"""Of a token of output; JPY is of a list that only sums have, which somebody mends by hand."""
MODEL = {"USD": "fake-base", "EUR": "fake-eur"}
_numbers = itertools.count()


@dataclass
class World:
    """The real books, and beside them what has happened. Time is whole hours from BEGIN."""

    books: Books
    now: int = 1
    uses: list[Use] = field(default_factory=list)
    mended: dict[date, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    grants: list[Given] = field(default_factory=list)
    kinds: list[GrantKind] = field(default_factory=list)
    paid: int = 0  # by the tenant

    @property
    def db(self) -> Database:
        return self.books.db

    def at(self, hour: int) -> datetime:
        return BEGIN + timedelta(hours=hour)

    # What may happen

    async def use(self, ago: int, currency: str, tokens: int) -> None:
        """Now or `ago`: what is stored late."""
        hour = max(self.now - ago, 0)
        at = self.at(hour) + timedelta(minutes=30)
        record = usage_record(
            f"chatcmpl_{next(_numbers):026d}:0",
            self.books.tenant_id,
            context={
                "tenant_id": self.books.tenant_id,
                "api_key_id": "key_1",
                "adapter_version_id": "",
                "model": MODEL[currency],
                "plan": "free",
            },
            prompt_tokens=0,
            cached_tokens=0,
            output_tokens=tokens,
            arrival_s=at.timestamp() - 1,
            first_token_s=at.timestamp() - 0.5,
            finished_s=at.timestamp(),
        )
        engine: Any = None
        await UsageSink(engine, self.db).store([record])
        self.uses.append((hour, currency, tokens))

    async def mend(self, ago: int, amount: int) -> None:
        """A day's sum moves up or down."""
        day = self.at(max(self.now - ago, 0)).date()
        await self.books.used(day, "JPY", "output", Decimal(amount))
        self.mended[day] += amount

    async def grant(self, kind: GrantKind, currency: str, tokens: int, lasts: int | None) -> None:
        ends = None if lasts is None else self.now + lasts
        given = Grant(
            amount=tokens * UNIT[currency],
            kind=kind,
            currency=currency,
            expires_at=None if ends is None else self.at(ends),
        )
        async with self.db.admin_session() as session:
            await grant_credit(
                session, self.books.ledger, self.books.tenant_id, given, now=self.at(self.now)
            )
        self.grants.append(Given(tokens, self.now, ends, currency))
        self.kinds.append(kind)

    async def wait(self, hours: int) -> None:
        self.now += hours

    async def pay(self) -> None:
        self.paid += 1
        number = self.paid
        async with self.db.admin_session() as session:
            await self.books.ledger.post(
                session,
                self.books.tenant_id,
                kind="payment",
                reference=str(number),
                currency="USD",
                day=self.at(self.now).date(),
                entries=[Entry("cash", Decimal(1)), Entry("receivable", Decimal(-1))],
            )

    async def take_back(self, which: int) -> None:
        """A posting of usage, if there is one that was not taken back."""
        async with self.db.admin_session() as session:
            rows = list(
                await session.scalars(
                    select(LedgerTransactionRow)
                    .where(
                        LedgerTransactionRow.tenant_id == self.books.tenant_id,
                        LedgerTransactionRow.kind == "usage",
                        LedgerTransactionRow.reverses.is_(None),
                    )
                    .order_by(LedgerTransactionRow.seq)
                )
            )
            if rows:
                await take_back_usage(session, self.books.ledger, rows[which % len(rows)])

    async def post(self) -> None:
        await Poster(self.db, self.books.ledger).run_once(self.at(self.now))

    async def keep(self) -> None:
        await CreditKeeper(self.db, self.books.ledger).run_once(self.at(self.now))

    async def apply(self, ago: int = 0) -> None:
        """As an invoice run."""
        now = self.at(self.now)
        async with self.db.admin_session() as session:
            await post_due(session, self.books.ledger, self.books.tenant_id, now)
            await apply_credits(
                session,
                self.books.ledger,
                self.books.tenant_id,
                self.at(max(self.now - ago, 0)),
                now,
            )

    async def at_once(self, works: list[str]) -> None:
        await asyncio.gather(*(getattr(self, work)() for work in works))

    async def rebuild(self) -> None:
        async with self.db.admin_session() as session:
            before = await compare_balances(session, self.books.tenant_id)
            await rebuild_balances(session, self.books.tenant_id)
            assert before == await compare_balances(session, self.books.tenant_id) == []

    # What must be

    async def hold(self) -> None:
        """At every step."""
        found = await self.books.totals()
        assert found == await self.books.balances()
        for currency in UNIT:
            assert sum(amount for (each, _), amount in found.items() if each == currency) == 0

    async def agree(self) -> None:
        """Once everything that is due is posted."""
        await self.apply()
        assert await self.books.totals() == self.expected()
        async with self.db.admin_session() as session:
            chain, tenant = self.books.ledger.chain, self.books.tenant_id
            assert [each async for each in problems(session, chain, tenant)] == []
        seqs = [seq for seq, _, _ in await self.books.transactions()]
        assert seqs == list(range(1, len(seqs) + 1))

    def expected(self) -> dict[Key, Decimal]:
        found: defaultdict[Key, Decimal] = defaultdict(Decimal)

        def move(currency: str, debit: str, credit: str, amount: Decimal) -> None:
            found[currency, debit] += amount
            found[currency, credit] -= amount

        for _, currency, tokens in self.uses:
            move(currency, "unbilled", "revenue:output", tokens * UNIT[currency])
        for amount in self.mended.values():
            move("JPY", "unbilled", "revenue:output", amount)
        move("USD", "cash", "receivable", Decimal(self.paid))
        paid = modelled(self.grants, [use for use in self.uses if use[0] < self.now])
        for each, kind, units in zip(self.grants, self.kinds, paid, strict=True):
            unit = UNIT[each.currency]
            source = "cash" if kind == "bought" else "promotion"
            move(each.currency, source, f"credit:{kind}", each.amount * unit)
            move(each.currency, f"credit:{kind}", "unbilled", units * unit)
            if each.ends is not None and each.ends <= self.now:
                lost = "credit:lapsed" if kind == "bought" else "promotion"
                move(each.currency, f"credit:{kind}", lost, (each.amount - units) * unit)
        return {key: amount for key, amount in found.items() if amount}


_currency = st.sampled_from(["USD", "USD", "EUR"])
_ago = st.integers(0, 60)
_work = st.sampled_from(["post", "keep", "apply", "pay"])
Step = tuple[Any, ...]
_steps = st.one_of(
    st.tuples(st.just("use"), _ago, _currency, st.integers(1, 9)),
    st.tuples(st.just("use"), st.just(0), _currency, st.integers(1, 9)),
    st.tuples(st.just("mend"), _ago, st.integers(-5, 5).filter(bool)),
    st.tuples(
        st.just("grant"),
        st.sampled_from(["granted", "bought"]),
        _currency,
        st.integers(1, 12),
        st.none() | st.integers(1, 50),
    ),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("take_back"), st.integers(0, 9)),
    st.tuples(st.just("apply"), _ago),
    st.sampled_from([("post",), ("keep",), ("rebuild",)]),
    st.tuples(st.just("at_once"), st.lists(_work, min_size=2, max_size=4)),
)


@pytest.fixture(scope="module")
async def euros(db: Database) -> None:
    """A price list for one model in another currency."""
    async with db.admin_session() as session:
        version = new_id("price")
        await session.execute(
            text(
                "insert into price_versions (id, model, currency, effective_from) "
                "values (:id, :model, 'EUR', '2020-01-01Z')"
            ),
            {"id": version, "model": MODEL["EUR"]},
        )
        await session.execute(
            text(
                "insert into prices (price_version_id, meter, per_million) "
                "select :id, meter, 0.000001 from (select distinct meter from prices) as m"
            ),
            {"id": version},
        )


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(_steps, min_size=3, max_size=14))
async def test_histories(db: Database, ledger: Ledger, euros: None, steps: list[Step]) -> None:
    world = World(await new_books(db, ledger, ("JPY",), model=new_id("unused")))
    for name, *values in steps:
        do: Callable[..., Awaitable[None]] = getattr(world, name)
        await do(*values)
        await world.hold()
    await world.agree()
    await world.wait(100)  # whatever expires has expired
    await world.agree()
