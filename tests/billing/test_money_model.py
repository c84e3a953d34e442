"""The model of a quarter's money, on numbers worked out by hand: what it says is what is meant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from money_model import Grant, TenantBooks, ceil_nanos, rounded
from money_prices_model import TICK, Event, PriceList, PriceModel, Tiers, cost, next_month

JANUARY = datetime(2031, 1, 1, tzinfo=UTC)
FEBRUARY = datetime(2031, 2, 1, tzinfo=UTC)
MARCH = datetime(2031, 3, 1, tzinfo=UTC)


def flat(**prices: str) -> dict[tuple[str, str], Tiers]:
    return {(meter, ""): ((0, Fraction(price)),) for meter, price in prices.items()}


def books(*lists: PriceList, **more: Any) -> TenantBooks:
    return TenantBooks("t", PriceModel(list(lists)), **more)


def used(name: str, at: datetime, **quantities: int) -> Event:
    return Event(name, at, "t", quantities)


def test_halves_go_to_the_even_coin() -> None:
    cases = {"0.125": "0.12", "0.135": "0.14", "-0.125": "-0.12", "2.5": "2.50", "0.1251": "0.13"}
    for exact, expected in cases.items():
        assert rounded(Fraction(exact), "USD") == Fraction(expected)
    assert rounded(Fraction("2.5"), "JPY") == 2
    assert rounded(Fraction("3.5"), "JPY") == 4
    assert rounded(Fraction("0.0015"), "KWD") == Fraction("0.002")


def test_budgets_count_nanos_rounded_up() -> None:
    assert ceil_nanos(Fraction("0.000000001")) == 1
    assert ceil_nanos(Fraction("0.0000000011")) == 2
    assert ceil_nanos(Fraction(0)) == 0


def test_a_month_ends_with_the_next() -> None:
    assert next_month("2031-01") == FEBRUARY
    assert next_month("2031-12") == datetime(2032, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "quantity", "expected"),
    [
        (0, 1000, 2000),  # all in the first
        (0, 1001, 2001),
        (999, 2, 3),  # one in each
        (0, 6000, 2000 + 4000 + 500),  # 1,000 at 2, 4,000 at 1, 1,000 at a half
        (5000, 10, 5),
        (400, 0, 0),
    ],
)
def test_each_unit_has_the_price_of_its_place(before: int, quantity: int, expected: int) -> None:
    tiers = ((0, Fraction(2)), (1000, Fraction(1)), (5000, Fraction(1, 2)))
    assert cost(tiers, before, quantity) * 10**6 == expected


def test_tiers_begin_anew_each_month_and_for_each_class() -> None:
    prices = {("output", ""): ((0, Fraction(2)), (1000, Fraction(1)))}
    model = PriceModel([PriceList("tiered", JANUARY, prices)])

    def amount(at: datetime, quantity: int, class_: str = "default") -> Fraction:
        charge = model.rate(Event("e", at, "t", {"output": quantity}, class_=class_))
        assert charge is not None
        return charge.amount * 10**6

    assert amount(JANUARY, 900) == 1800
    assert amount(JANUARY, 200) == 300  # 100 at 2, 100 at 1
    assert amount(JANUARY, 10, "flex") == 20
    assert amount(FEBRUARY - TICK, 10) == 10
    assert amount(FEBRUARY, 10) == 20


def test_the_strongest_scope_and_of_it_the_newest() -> None:
    def listed(name: str, begins: datetime = JANUARY, **scope: Any) -> PriceList:
        return PriceList(name, begins, flat(output="1"), **scope)

    lists = [
        listed("general", MARCH),
        listed("model", model="m"),
        listed("plan", plan="p"),
        listed("tenant", tenant="t"),
        listed("adapter", adapter="a"),
    ]
    model = PriceModel(lists)
    scope = ("a", "t", "p", "m")
    for name in ("adapter", "tenant", "plan", "model"):
        found = model.in_force(scope, MARCH)
        assert found is not None
        assert found.name == name
        model.lists = [each for each in model.lists if each.name != name]
    assert model.in_force(scope, MARCH) == lists[0]
    assert model.in_force(scope, MARCH - TICK) is None


def test_what_lacks_one_price_waits_whole() -> None:
    found = books(PriceList("half", JANUARY, flat(output="1")))
    found.store([used("a:0", JANUARY, output=5, uncached_prefill=1), used("b:0", JANUARY)])
    assert set(found.waiting) == {"a:0"}
    assert found.charges["b:0"].amount == 0
    whole = PriceList("whole", JANUARY, flat(output="1", uncached_prefill="3"), plan="standard")
    found.prices.lists.append(whole)
    found.rate_waiting()
    assert found.charges["a:0"].amount == Fraction(8, 10**6)


def test_where_a_price_may_begin() -> None:
    old = PriceList("old", JANUARY, flat(output="1"))
    found = books(old)
    found.store([used("a:0", FEBRUARY, output=1)])
    charged = list(found.charges.values())

    def earliest(begins: datetime, **scope: Any) -> datetime | None:
        return found.prices.earliest(PriceList("new", begins, {}, **scope), charged)

    assert earliest(JANUARY + TICK) == FEBRUARY + TICK
    assert earliest(FEBRUARY) == FEBRUARY + TICK
    assert earliest(FEBRUARY + TICK) is None
    assert earliest(JANUARY + TICK, plan="other") is None
    assert earliest(JANUARY, tenant="t") == FEBRUARY + TICK


def test_an_invoice_and_its_books() -> None:
    """A thousand tokens at 1.2345 a thousand and 5 at 1 a unit: 1.2345 and 5, of which 2 are
    included, with a minimum of 10 and 19% of tax: 1.23 + 5.00 - 2.00 + 5.77 = 10.00, 1.90 of it."""
    prices = flat(output="1234.5", cold_load="1000000")
    listed = PriceList("list", JANUARY, prices, minimum=Fraction(10), included=Fraction(2))
    found = books(listed, tax_rate=Fraction("0.19"))
    found.store([used("a:0", JANUARY, output=1000, cold_load=5)])
    (invoice,) = found.run("2031-01", FEBRUARY)
    assert [(line.kind, line.meter, line.amount) for line in invoice.lines] == [
        ("usage", "cold_load", 5),
        ("usage", "output", Fraction("1.23")),
        ("included", None, -2),
        ("minimum", None, Fraction("5.77")),
        ("tax", None, Fraction("1.90")),
    ]
    assert invoice.total == Fraction("11.90")
    assert found.ledger.shown() == {
        ("receivable", "USD"): Fraction("11.90"),
        ("revenue:output", "USD"): -Fraction("1.2345"),
        ("revenue:cold_load", "USD"): -5,
        ("revenue:included", "USD"): 2,
        ("revenue:minimum", "USD"): -Fraction("5.77"),
        ("tax", "USD"): -Fraction("1.90"),
        ("rounding", "USD"): Fraction("0.0045"),  # of 1.2345
    }
    assert found.run("2031-01", FEBRUARY) == []
    assert found.void(invoice)
    assert found.ledger.shown() == {
        ("unbilled", "USD"): Fraction("6.2345"),
        ("revenue:output", "USD"): -Fraction("1.2345"),
        ("revenue:cold_load", "USD"): -5,
    }
    (again,) = found.run("2031-01", FEBRUARY)
    assert again.lines == invoice.lines


def test_payments_and_credit_notes() -> None:
    """11.90 are due: 2.50 of the 5.00 go back with 19% of it, 0.475, so 0.48; then the other half
    with what is left of 0.95; then the 5.95 that are still open are paid."""
    prices = flat(output="1234.5", cold_load="1000000")
    found = books(PriceList("list", JANUARY, prices), tax_rate=Fraction("0.19"))
    found.store([used("a:0", JANUARY, output=4051, cold_load=5)])  # 5.0009595 and 5
    (invoice,) = found.run("2031-01", FEBRUARY)
    assert invoice.due == Fraction("11.90")
    half = Fraction("2.50")
    assert found.note(invoice, 0, half)
    assert invoice.noted_tax == Fraction("0.48")
    assert not found.note(invoice, 0, half + Fraction("0.01"))
    assert found.note(invoice, 0, half)
    assert invoice.noted_tax == Fraction("0.95")
    assert not found.pay(invoice, Fraction("5.96"))
    assert found.pay(invoice, Fraction("5.95"))
    assert not found.void(invoice)
    assert found.ledger.shown() == {
        ("cash", "USD"): Fraction("5.95"),
        ("revenue:output", "USD"): -Fraction("5.0009595"),
        ("tax", "USD"): -Fraction("0.95"),
        ("rounding", "USD"): Fraction("0.0009595"),
    }


def test_residues_are_kept() -> None:
    found = books(PriceList("list", JANUARY, flat(output="5000")))  # 0.005 each
    found.store([used("a:0", JANUARY, output=1)])
    (invoice,) = found.run("2031-01", FEBRUARY)
    assert invoice.total == 0
    assert found.ledger.shown() == {
        ("revenue:output", "USD"): -Fraction("0.005"),
        ("rounding", "USD"): Fraction("0.005"),
    }


def test_late_usage_is_on_the_next_invoice() -> None:
    found = books(PriceList("list", JANUARY, flat(output="10000")))  # a cent each
    found.store([used("a:0", JANUARY, output=3)])
    found.run("2031-01", FEBRUARY)
    late = used("b:0", FEBRUARY - TICK, output=2)
    found.store([late, used("c:0", FEBRUARY, output=1)])
    (invoice,) = found.run("2031-02", MARCH)
    assert [(line.kind, line.month, line.quantity, line.amount) for line in invoice.lines] == [
        ("usage", "2031-02", 1, Fraction("0.01")),
        ("adjustment", "2031-01", 2, Fraction("0.02")),
    ]
    assert ("unbilled", "USD") not in found.ledger.shown()


def test_credit_is_spent_by_expiry_and_lapses() -> None:
    """Ten until the 11th and five for ever. Four are used before the 11th, nine after: the first
    grant pays 4 and loses 6, the second pays 5, and 4 are owed."""
    day = timedelta(days=1)
    found = books(PriceList("list", JANUARY, flat(output="1000000")))
    found.grant(Grant("always", Fraction(5), JANUARY, "bought"))
    found.grant(Grant("soon", Fraction(10), JANUARY, expires=JANUARY + 10 * day))
    found.store([used("a:0", JANUARY + 9 * day, output=4), used("b:0", FEBRUARY - day, output=9)])
    found.post_usage()
    found.apply_credit(JANUARY + 10 * day, JANUARY + 10 * day)
    assert found.grants[1].lapsed == 6
    assert found.ledger.shown() == {
        ("unbilled", "USD"): 9,
        ("revenue:output", "USD"): -13,
        ("promotion", "USD"): 4,
        ("cash", "USD"): 5,
        ("credit:bought", "USD"): -5,
    }
    (invoice,) = found.run("2031-01", FEBRUARY)
    assert [(line.kind, line.amount) for line in invoice.lines] == [
        ("usage", Fraction(13)),
        ("credit", Fraction(-9)),
    ]
    assert found.ledger.shown() == {
        ("receivable", "USD"): 4,
        ("revenue:output", "USD"): -13,
        ("promotion", "USD"): 4,
        ("cash", "USD"): 5,
    }


def test_bought_credit_that_lapses_is_income() -> None:
    found = books(PriceList("list", JANUARY, flat(output="1")))
    found.grant(Grant("g", Fraction(7), JANUARY, "bought", expires=FEBRUARY))
    found.apply_credit(FEBRUARY, FEBRUARY)
    assert found.ledger.shown() == {("cash", "USD"): 7, ("credit:lapsed", "USD"): -7}


def test_late_usage_is_paid_by_credit_of_its_time() -> None:
    """Seven lapsed of ten; then five more that were used in its time become known. What was used
    before the grant or when it had expired is not paid by it."""
    day = timedelta(days=1)
    found = books(PriceList("list", JANUARY, flat(output="1000000")))
    found.grant(Grant("g", Fraction(10), JANUARY + day, expires=JANUARY + 10 * day))
    found.store([used("a:0", JANUARY + day, output=3), used("b:0", JANUARY, output=100)])
    found.apply_credit(FEBRUARY, FEBRUARY)
    assert found.grants[0].lapsed == 7
    found.store([used("c:0", JANUARY + 10 * day - TICK, output=5)])
    found.store([used("d:0", JANUARY + 10 * day, output=5)])
    found.apply_credit(FEBRUARY, FEBRUARY)
    assert found.grants[0].lapsed == 2
    assert found.ledger.shown()["promotion", "USD"] == 8
