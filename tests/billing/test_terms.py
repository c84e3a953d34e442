"""The terms of a month: each day has those of its plan and its price list, whatever a tenant has by
now."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.billing.price_lists import PriceList, Prices, Scope
from tenora_platform.billing.terms import Customer, Spell, Stay, Terms
from tenora_platform.tenants.plan_history import PlanHistory

NOVEMBER = date(2026, 11, 1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}Z")


LONG_AGO = at("2020-01-01T00:00:00")


def listed(
    plan: str,
    minimum: Decimal,
    included: Decimal = Decimal(0),
    begins: datetime = LONG_AGO,
    currency: str = "USD",
) -> PriceList:
    scope = Scope(None, None, plan, None)
    return PriceList(
        f"{plan}-{begins}", 1, scope, currency, begins, None, {}, minimum=minimum, included=included
    )


def customer(*plans: tuple[datetime, str], stay: Stay | None = None) -> Customer:
    return Customer("t", PlanHistory(plans), stay or Stay(LONG_AGO))


@pytest.mark.parametrize(
    ("since", "until", "days"),
    [
        ("2020-01-01T00:00:00", None, 30),
        ("2026-11-01T00:00:00", None, 30),
        ("2026-11-01T23:59:59", None, 30),
        ("2026-11-02T00:00:00", None, 29),
        ("2026-11-30T23:59:59", None, 1),
        ("2026-12-01T00:00:00", None, 0),
        ("2020-01-01T00:00:00", "2026-11-01T00:00:00", 1),
        ("2020-01-01T00:00:00", "2026-11-10T12:00:00", 10),
        ("2020-01-01T00:00:00", "2026-11-30T12:00:00", 30),
        ("2020-01-01T00:00:00", "2026-12-01T00:00:00", 30),
        ("2020-01-01T00:00:00", "2026-10-31T23:59:59", 0),
        ("2026-11-10T00:00:00", "2026-11-10T01:00:00", 1),
        ("2026-11-10T00:00:00", "2026-11-12T01:00:00", 3),
    ],
)
def test_a_minimum_is_of_the_days_on_which_the_tenant_was_there(
    since: str, until: str | None, days: int
) -> None:
    """What is included is all of it: nobody's first month has less."""
    stay = Stay(at(since), None if until is None else at(until))
    prices = Prices([listed("standard", Decimal(30), Decimal(6))])
    found = customer((at(since), "standard"), stay=stay).terms(prices, NOVEMBER)
    assert (found.days_there, found.days) == (days, 30)
    assert found.of("USD") == Terms(minimum=Decimal(days), included=Decimal(6))
    assert found.of("EUR") == Terms()


def test_a_day_is_one_in_utc() -> None:
    since = datetime.fromisoformat("2026-11-02T01:00:00+02:00")  # still the first
    found = customer((since, "standard"), stay=Stay(since)).terms(Prices(), NOVEMBER)
    assert found.days_there == 30


def test_a_month_has_the_plan_it_had() -> None:
    """Not the one of when the invoice is made."""
    prices = Prices([listed("standard", Decimal(0)), listed("premium", Decimal(100))])
    moved = customer((LONG_AGO, "standard"), (at("2026-11-25T10:00:00"), "premium"))
    assert moved.terms(prices, date(2026, 10, 1)).of("USD").minimum == 0
    assert moved.terms(prices, date(2026, 12, 1)).of("USD").minimum == 100


def test_a_month_of_two_plans_has_a_share_of_each() -> None:
    """Of the 25th on it is the new one's: that was in force when the day ended."""
    prices = Prices([listed("standard", Decimal(30)), listed("premium", Decimal(100), Decimal(5))])
    found = customer((LONG_AGO, "standard"), (at("2026-11-25T10:00:00"), "premium")).terms(
        prices, NOVEMBER
    )
    assert found.of("USD") == Terms(minimum=Decimal("44.00"), included=Decimal("1.00"))
    assert found.plans == (
        Spell("standard", NOVEMBER, date(2026, 11, 25)),
        Spell("premium", date(2026, 11, 25), date(2026, 12, 1)),
    )


def test_a_list_that_follows_has_the_days_from_its_beginning_on() -> None:
    lists = [
        listed("standard", Decimal(30)),
        listed("standard", Decimal(60), begins=at("2026-11-16T00:00:00"), currency="EUR"),
    ]
    found = customer((LONG_AGO, "standard")).terms(Prices(lists), NOVEMBER)
    assert found.by_currency == {"EUR": Terms(minimum=Decimal(30)), "USD": Terms(Decimal(15))}


_TIMES = st.datetimes(datetime(2026, 9, 1), datetime(2027, 1, 1)).map(
    lambda t: t.replace(tzinfo=UTC)
)
_CENTS = st.integers(0, 10**12).map(lambda cents: Decimal(cents).scaleb(-2))


@given(
    st.lists(st.tuples(_TIMES, st.sampled_from("ab")), max_size=5, unique_by=lambda each: each[0]),
    st.tuples(_CENTS, _CENTS),
    st.tuples(_CENTS, _CENTS),
    _TIMES,
    st.none() | st.timedeltas(timedelta(0), timedelta(days=90)),
)
def test_terms_are_those_of_each_day(
    moves: list[tuple[datetime, str]],
    minima: tuple[Decimal, Decimal],
    included: tuple[Decimal, Decimal],
    since: datetime,
    stays: timedelta | None,
) -> None:
    """Summed up one day after the other."""
    plans = ((LONG_AGO, "a"), *sorted(moves))
    stay = Stay(since, None if stays is None else since + stays)
    prices = Prices(
        listed(plan, minimum, free)
        for plan, minimum, free in zip("ab", minima, included, strict=True)
    )
    found = customer(*plans, stay=stay).terms(prices, NOVEMBER).of("USD")
    least, free = Fraction(0), Fraction(0)
    for number in range(30):
        day = NOVEMBER + timedelta(days=number)
        ends = datetime.combine(day + timedelta(days=1), datetime.min.time(), UTC)
        place = "ab".index([plan for begins, plan in plans if begins < ends][-1])
        free += Fraction(included[place]) / 30
        is_there = stay.since < ends and (stay.until is None or stay.until.date() >= day)
        least += Fraction(minima[place]) / 30 if is_there else 0
    # Twelve decimals come before the cent: only what is nearer to a half than that may differ.
    assert abs(Fraction(found.minimum) - least) <= Fraction(1, 200) + Fraction(1, 10**11)
    assert abs(Fraction(found.included) - free) <= Fraction(1, 200) + Fraction(1, 10**11)
