"""Credit: which grant pays for what, against a plain model of single uses; and that the ledger says
so, once, whatever comes late, expires, crashes or is asked twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from api_harness import Api
from credit_model import Given, Use, modelled
from ledger_books import Books, Key, new_books
from tenora_platform.budgets.credit import Spell, credit_of, paid_by
from tenora_platform.budgets.grants import Grant, grant_credit
from tenora_platform.budgets.repository import amounts_spent
from tenora_platform.budgets.repository import grants as grants_of
from tenora_platform.budgets.tables import CreditGrantRow
from tenora_platform.db import Database
from tenora_platform.ledger.credits import apply_credits, credit_shares
from tenora_platform.ledger.expiry import CreditKeeper
from tenora_platform.ledger.service import Ledger
from tenora_platform.ledger.verify import problems
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

BEGIN = datetime(2026, 9, 1, tzinfo=UTC)
OUTPUT = Decimal("0.0000004")  # of a token; the list of migrations
_numbers = itertools.count()


def hours(number: float) -> datetime:
    return BEGIN + timedelta(hours=number)


# The rule, without a database


def row(number: int, given: Given) -> CreditGrantRow:
    return CreditGrantRow(
        id=f"credit_{number}",
        tenant_id="t",
        amount=Decimal(given.amount),
        kind="granted",
        currency=given.currency,
        created_at=hours(given.begins),
        expires_at=None if given.ends is None else hours(given.ends),
    )


def spells(given: Sequence[Given], uses: Sequence[Use]) -> list[Spell]:
    bounds = sorted(
        {each.begins for each in given} | {each.ends for each in given if each.ends} | {100}
    )
    found = []
    for start, end in itertools.pairwise(bounds):
        used: dict[str, Decimal] = {}
        for at, currency, amount in uses:
            if start <= at < end:
                used[currency] = used.get(currency, Decimal(0)) + amount
        found.append(Spell(hours(start), hours(end), used, used))
    return found


_currencies = st.sampled_from(["USD", "USD", "EUR"])
_given = st.builds(
    lambda amount, begins, lasts, currency: Given(
        amount, begins, None if lasts is None else begins + lasts, currency
    ),
    st.integers(1, 12),
    st.integers(0, 20),
    st.none() | st.integers(1, 15),
    _currencies,
)
_use = st.tuples(st.integers(0, 40), _currencies, st.integers(1, 9))


@settings(max_examples=300)
@given(st.lists(_given, min_size=1, max_size=5), st.lists(_use, max_size=8), _use, _given)
def test_the_rule(given: list[Given], uses: list[Use], late: Use, new: Given) -> None:
    """As a unit by unit model has it; and neither what comes late nor a further grant takes
    anything back."""

    def paid(given: list[Given], uses: list[Use]) -> list[int]:
        found = paid_by(
            [row(number, each) for number, each in enumerate(given)], spells(given, uses)
        )
        return [int(found[f"credit_{number}"]) for number in range(len(given))]

    before = paid(given, uses)
    assert before == modelled(given, uses)
    after = paid(given, [*uses, late])
    assert all(was <= now for was, now in zip(before, after, strict=True))
    newest = max([each.begins for each in given] + [at for at, _, _ in uses]) + 1
    later = Given(new.amount, newest, None if new.ends is None else newest + 1, new.currency)
    assert paid([*given, later], uses)[: len(given)] == before


# In the ledger


@pytest.fixture
async def books(db: Database, ledger: Ledger) -> Books:
    return await new_books(db, ledger, ())


async def use(books: Books, at: datetime, tokens: int) -> None:
    """Through the sink, at the price of migrations."""
    record = usage_record(
        f"chatcmpl_{next(_numbers):026d}:0",
        books.tenant_id,
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=tokens,
        arrival_s=at.timestamp() - 1,
        first_token_s=at.timestamp() - 0.5,
        finished_s=at.timestamp(),
    )
    engine: Any = None
    await UsageSink(engine, books.db).store([record])


async def give(books: Books, at: datetime, tokens: int, **more: Any) -> CreditGrantRow:
    async with books.db.admin_session() as session:
        return await grant_credit(
            session, books.ledger, books.tenant_id, Grant(amount=tokens * OUTPUT, **more), now=at
        )


async def apply(books: Books, until: datetime, now: datetime | None = None) -> list[Decimal]:
    """In tokens, the older grant first."""
    async with books.db.admin_session() as session:
        shares = await apply_credits(session, books.ledger, books.tenant_id, until, now or until)
    return [each.paid / OUTPUT for each in shares]


async def totals(books: Books) -> dict[str, Decimal]:
    """In tokens; the chain holds and balances are right."""
    async with books.db.admin_session() as session:
        assert [each async for each in problems(session, books.ledger.chain, books.tenant_id)] == []
    found: dict[Key, Decimal] = await books.totals()
    assert sum(found.values()) == 0
    assert {currency for currency, _ in found} <= {"USD"}
    return {account: amount / OUTPUT for (_, account), amount in found.items()}


async def test_granted_applied_and_lapsed(books: Books) -> None:
    first = await give(books, hours(0), 10, expires_at=hours(24))
    await give(books, hours(1), 20, kind="bought")
    assert await totals(books) == {
        "promotion": 10,
        "credit:granted": -10,
        "cash": 20,
        "credit:bought": -20,
    }
    await use(books, hours(2), 4)
    await use(books, hours(30), 5)
    assert await apply(books, hours(20)) == [4, 0]
    assert (await totals(books))["unbilled"] == -4
    for _ in range(2):  # once
        assert await apply(books, hours(40)) == [4, 5]
    assert await totals(books) == {
        "promotion": 4,
        "cash": 20,
        "credit:bought": -15,
        "unbilled": -9,
    }
    assert [kind for _, kind, _ in await books.transactions()] == [
        *("grant", "grant", "credit", "lapse", "credit")
    ]
    days = await books.rows(
        "select kind, day from ledger_transactions where tenant_id = :tenant and reference = :of",
        of=f"{first.id}:1",
    )
    assert sorted(days) == [("credit", BEGIN.date()), ("lapse", BEGIN.date())]


async def test_bought_credit_that_lapses_is_income(books: Books) -> None:
    await give(books, hours(0), 7, kind="bought", expires_at=hours(5))
    await use(books, hours(5), 3)  # a moment too late
    assert await apply(books, hours(10)) == [0]
    assert await totals(books) == {"cash": 7, "credit:lapsed": -7}


async def test_what_comes_late_is_paid_by_what_held_then(books: Books) -> None:
    """The grant is closed, and opened again by what was used before it expired."""
    await give(books, hours(0), 10, expires_at=hours(24))
    await give(books, hours(1), 10, expires_at=hours(48))
    await use(books, hours(2), 3)
    assert await apply(books, hours(30)) == [3, 0]
    await use(books, hours(23), 4)
    await use(books, hours(23.5), 6)
    await use(books, hours(40), 1)
    assert await apply(books, hours(50)) == [10, 4]
    assert await totals(books) == {"promotion": 14, "unbilled": -14}
    async with books.db.admin_session() as session:
        lapsed = [each.lapsed for each in await grants_of(session, books.tenant_id)]
    assert lapsed == [0, 6 * OUTPUT]


async def test_an_invoice_of_last_month_does_not_undo_this_months(books: Books) -> None:
    await give(books, hours(0), 100)
    await use(books, hours(1), 5)
    await use(books, hours(30), 7)
    assert await apply(books, hours(40)) == [12]
    before = await books.transactions()
    assert await apply(books, hours(24), hours(40)) == [5]
    assert await books.transactions() == before
    async with books.db.admin_session() as session:
        (share,) = await credit_shares(session, books.tenant_id, hours(24))
    assert share.paid == 5 * OUTPUT
    assert (await totals(books))["unbilled"] == -12


async def test_a_budget_takes_nothing_of_a_new_grant_for_what_is_invoiced(books: Books) -> None:
    """What no grant pays is on an invoice. The balance of the budget is what the ledger owes."""
    await give(books, hours(0), 10)
    await use(books, hours(1), 14)
    await use(books, hours(5), 3)
    await give(books, hours(10), 20)
    await use(books, hours(11), 4)
    async with books.db.admin_session() as session:
        credit = await credit_of(session, books.tenant_id, hours(12), "USD")
        spent = await amounts_spent(session, books.tenant_id, credit.since, hours(12))
    assert await apply(books, hours(12)) == [10, 4]
    owed = -(await totals(books))["credit:granted"]
    assert (credit.cap - spent["USD"]) / OUTPUT == owed == 16


async def killed(books: Books) -> None:
    """Before the commit."""
    async with books.db.admin_session() as session:
        await apply_credits(session, books.ledger, books.tenant_id, hours(30), hours(30))
        raise ZeroDivisionError


async def test_applied_at_once_and_killed_it_is_posted_once(books: Books) -> None:
    await give(books, hours(0), 10, expires_at=hours(24))
    await give(books, hours(1), 10)
    await use(books, hours(2), 4)
    with pytest.raises(ZeroDivisionError):
        await killed(books)
    assert (await totals(books))["credit:granted"] == -20
    await asyncio.gather(*(apply(books, hours(30)) for _ in range(6)))
    assert await totals(books) == {"promotion": 14, "credit:granted": -10, "unbilled": -4}


async def test_a_worker_closes_what_nobody_asks_for(books: Books) -> None:
    """And enters grants of older versions."""
    await give(books, hours(0), 10, expires_at=hours(24))
    async with books.db.admin_session() as session:
        await session.execute(
            text(
                "insert into credit_grants (id, tenant_id, amount, created_at) "
                "values (:id, :tenant, 1, :at)"
            ),
            {"id": f"credit_{books.tenant_id}", "tenant": books.tenant_id, "at": hours(3)},
        )
    await use(books, hours(2), 4)
    keeper = CreditKeeper(books.db, books.ledger)
    assert await keeper.run_once(hours(23)) >= 1
    assert (await totals(books))["credit:granted"] == -10 - 1 / OUTPUT
    await keeper.run_once(hours(24))
    assert (await totals(books))["credit:granted"] == -1 / OUTPUT
    before = await books.transactions()
    await keeper.run_once(hours(24))
    assert await books.transactions() == before


async def test_credit_over_http(api: Api) -> None:
    tenant = await api.new_tenant("buyer")
    path = f"/admin/v1/tenants/{tenant.id}"
    made = await api.admin("POST", f"{path}/credits", json={"amount": "5", "kind": "bought"})
    assert (made.status_code, made.json()["kind"], made.json()["currency"]) == (
        201,
        "bought",
        "USD",
    )
    made = await api.admin("POST", f"{path}/credits", json={"amount": "2", "currency": "EUR"})
    assert (made.json()["kind"], made.json()["currency"]) == ("granted", "EUR")
    for body in ({"kind": "stolen"}, {"currency": "euro"}):
        answer = await api.admin("POST", f"{path}/credits", json={"amount": "5", **body})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in body
    shown = (await api.admin("GET", f"{path}/balances")).json()["data"]
    assert {(each["currency"], each["account"], Decimal(each["balance"])) for each in shown} == {
        ("USD", "cash", Decimal(5)),
        ("USD", "credit:bought", Decimal(-5)),
        ("EUR", "promotion", Decimal(2)),
        ("EUR", "credit:granted", Decimal(-2)),
    }
