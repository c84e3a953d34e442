"""The balance that requests are checked against is what the ledger owes of credit, whatever comes
late, expires or lies between two grants."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from credit_model import Given, Use, modelled
from ledger_books import Books, new_books
from tenora_platform.budgets.grants import Grant, grant_credit
from tenora_platform.budgets.seeding import Seeder
from tenora_platform.db import Database
from tenora_platform.ledger.credits import apply_credits
from tenora_platform.ledger.expiry import CreditKeeper
from tenora_platform.ledger.poster import post_due
from tenora_platform.ledger.service import Ledger
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

BEGIN = datetime(2026, 9, 1, tzinfo=UTC)
TOKEN = 400  # nanos, of output; the list of migrations
_numbers = itertools.count()


@dataclass
class World:
    """A tenant's credit, and beside it what has happened. Time is whole hours from BEGIN."""

    books: Books
    now: int = 0
    uses: list[Use] = field(default_factory=list)
    grants: list[Given] = field(default_factory=list)

    def at(self, hour: int) -> datetime:
        return BEGIN + timedelta(hours=hour)

    async def use(self, ago: int, tokens: int) -> None:
        """In the hour that begins now, or `ago`: what is stored late."""
        hour = max(self.now - ago, 0)
        at_s = (self.at(hour) + timedelta(minutes=30)).timestamp()
        record = usage_record(
            f"chatcmpl_{next(_numbers):026d}:0",
            self.books.tenant_id,
            prompt_tokens=0,
            cached_tokens=0,
            output_tokens=tokens,
            arrival_s=at_s - 1,
            first_token_s=at_s - 0.5,
            finished_s=at_s,
        )
        engine: Any = None
        await UsageSink(engine, self.books.db).store([record])
        self.uses.append((hour, "USD", tokens))

    async def give(self, tokens: int, lasts: int | None) -> None:
        ends = None if lasts is None else self.now + lasts
        given = Grant(
            amount=Decimal(tokens * TOKEN).scaleb(-9),
            expires_at=None if ends is None else self.at(ends),
        )
        async with self.books.db.admin_session() as session:
            await grant_credit(
                session, self.books.ledger, self.books.tenant_id, given, now=self.at(self.now)
            )
        self.grants.append(Given(tokens, self.now, ends, "USD"))

    async def wait(self, hours: int) -> None:
        self.now += hours

    async def keep(self) -> None:
        """A worker's round."""
        await CreditKeeper(self.books.db, self.books.ledger).run_once(self.at(self.now))

    async def agree(self, then: int) -> None:
        """By `then`, when the hour of the last use is over."""
        seeder = Seeder(self.books.db, store=None)  # type: ignore[arg-type]
        found = await seeder.spent(self.books.tenant_id, ["credit:USD"], self.at(then))
        balance = max(found["credit_cap:USD"] - found["credit:USD"], 0)
        paid = modelled(self.grants, self.uses)
        owed = sum(
            each.amount - units
            for each, units in zip(self.grants, paid, strict=True)
            if each.ends is None or then < each.ends
        )
        assert balance == owed * TOKEN
        async with self.books.db.admin_session() as session:
            await post_due(session, self.books.ledger, self.books.tenant_id, self.at(then))
            await apply_credits(
                session, self.books.ledger, self.books.tenant_id, self.at(then), self.at(then)
            )
        ledger = (await self.books.totals()).get(("USD", "credit:granted"), Decimal(0))
        assert -ledger * 10**9 == owed * TOKEN


Step = tuple[Any, ...]
_steps = st.one_of(
    st.tuples(st.just("use"), st.just(0), st.integers(1, 9)),
    st.tuples(st.just("use"), st.integers(0, 40), st.integers(1, 9)),
    st.tuples(st.just("give"), st.integers(1, 12), st.none() | st.integers(1, 30)),
    st.tuples(st.just("wait"), st.integers(1, 30)),
    st.tuples(st.just("keep")),
)
GAP: list[Step] = [("give", 9, 2), ("use", 0, 3), ("wait", 5), ("use", 0, 4), ("wait", 5)]
LATE: list[Step] = [("give", 9, 5), ("wait", 9), ("keep",), ("use", 7, 4), ("give", 6, None)]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(_steps, min_size=3, max_size=12))
@example(steps=GAP)
@example(steps=[*GAP, ("give", 5, None), ("use", 0, 2)])
@example(steps=LATE)
async def test_the_balance_is_what_the_ledger_owes(
    db: Database, ledger: Ledger, steps: list[Step]
) -> None:
    world = World(await new_books(db, ledger, ()))
    for name, *values in steps:
        await getattr(world, name)(*values)
    for later in (1, 20, 100):
        await world.agree(world.now + later)
