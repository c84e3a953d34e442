"""What an invoice says, against a plain model in Fractions: whatever was used, at whatever terms,
each line is rounded once, nothing is lost, and the books balance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_platform.billing.terms import Terms
from tenora_platform.invoices.currency import minor_unit, plain, rounded, shown
from tenora_platform.invoices.lines import Bill, Billed, Line, Month, Tax, Used, make_bill
from tenora_platform.invoices.postings import of_credit_note, of_invoice, of_payment

MONTH, BEFORE, LONG_BEFORE = date(2026, 11, 1), date(2026, 10, 1), date(2025, 12, 1)
UNITS = {"USD": Fraction(1, 100), "JPY": Fraction(1), "KWD": Fraction(1, 1000)}
EXACT = Decimal(1).scaleb(-12)

amounts = st.integers(0, 10**22).map(lambda number: Decimal(number).scaleb(-12))
small = st.integers(0, 5 * 10**10).map(lambda number: Decimal(number).scaleb(-12))
money = st.one_of(st.just(Decimal(0)), small, amounts)


@st.composite
def used(draw: st.DrawFn, month: date) -> Used:
    return Used(
        month=month,
        meter=draw(st.sampled_from(["output", "uncached_prefill", "cold_load", "stored"])),
        class_=draw(st.sampled_from(["default", "flex", ""])),
        price_version_no=draw(st.integers(1, 3)),
        quantity=draw(st.integers(1, 10**12)),
        amount=draw(money),
    )


def months(minimum: Decimal = Decimal(0), included: Decimal = Decimal(0)) -> dict[date, Month]:
    """These are the terms of the invoice's own month; nothing has been billed of any."""
    found = {month: Month(Terms(), Billed()) for month in (BEFORE, LONG_BEFORE)}
    return found | {MONTH: Month(Terms(minimum, included), Billed())}


def half_even(amount: Fraction, unit: Fraction) -> Fraction:
    """Python rounds a Fraction half to even."""
    return round(amount / unit) * unit


def expected_amounts(
    usage: Sequence[Used],
    late: Sequence[Used],
    unit: Fraction,
    terms: tuple[Fraction, Fraction],
    credit: Fraction,
    rate: Fraction | None,
) -> dict[str, Fraction]:
    """The sum of each kind of line, as the design says it."""
    minimum, included = terms
    used_sum = sum((half_even(Fraction(each.amount), unit) for each in usage), Fraction())
    late_sum = sum((half_even(Fraction(each.amount), unit) for each in late), Fraction())
    exact = sum((Fraction(each.amount) for each in [*usage, *late]), Fraction())
    free = min(half_even(included, unit), used_sum)
    owed = used_sum + late_sum - free
    top = max(half_even(minimum, unit) - used_sum + free, Fraction())
    paid = owed if credit >= max(exact - free, Fraction()) else min(half_even(credit, unit), owed)
    so_far = owed + top - paid
    tax = half_even(so_far * rate / 100, unit) if rate is not None else Fraction()
    return {
        "usage": used_sum,
        "adjustment": late_sum,
        "included": -free,
        "minimum": top,
        "credit": -paid,
        "tax": tax,
    }


@settings(max_examples=300)
@given(
    st.lists(used(MONTH), max_size=6),
    st.lists(st.one_of(used(BEFORE), used(LONG_BEFORE)), max_size=4),
    st.sampled_from(sorted(UNITS)),
    st.tuples(money, money),
    money,
    st.one_of(st.none(), st.decimals(0, 100, places=4)),
)
def test_every_bill_is_the_models(
    usage: list[Used],
    late: list[Used],
    currency: str,
    terms: tuple[Decimal, Decimal],
    credit: Decimal,
    rate: Decimal | None,
) -> None:
    bill = make_bill(
        MONTH,
        currency,
        [*late, *usage],
        months(*(rounded(each, currency) for each in terms)),
        credit=credit,
        tax=None if rate is None else Tax("VAT", rate),
    )
    expected = expected_amounts(
        usage,
        late,
        UNITS[currency],
        (Fraction(terms[0]), Fraction(terms[1])),
        Fraction(credit),
        None if rate is None else Fraction(rate),
    )
    kinds = list(expected)
    found = {kind: Fraction() for kind in kinds}
    for line in bill.lines:
        found[line.kind] += Fraction(line.amount)
    assert found == expected
    check_lines(bill, kinds, UNITS[currency])
    entries = of_invoice(bill)
    assert sum(map(Fraction, entries.values())) == 0
    exact = sum(Fraction(each.amount) for each in [*usage, *late])
    paid = -sum(Fraction(line.exact) for line in bill.lines if line.kind == "credit")
    assert Fraction(entries.get("unbilled", 0)) == paid - exact
    assert Fraction(entries.get("receivable", 0)) == Fraction(bill.total) >= 0
    # A line is wrong by half a unit at most, and credit by what the others were.
    assert abs(Fraction(bill.residue)) <= UNITS[currency] / 2 * (len(usage) + len(late) + 1)


def check_lines(bill: Bill, kinds: list[str], unit: Fraction) -> None:
    assert [line.no for line in bill.lines] == list(range(1, len(bill.lines) + 1))
    places = [kinds.index(line.kind) for line in bill.lines]
    assert places == sorted(places)
    for line in bill.lines:
        assert Fraction(line.amount) % unit == 0
        assert not line.amount.is_signed() or line.amount < 0  # no "-0.00"
        assert (line.quantity is not None) == (line.kind in ("usage", "adjustment"))
    assert bill.subtotal + bill.tax == bill.total


def one(amount: str, month: date = MONTH, **more: str) -> Used:
    return Used(month, more.get("meter", "output"), "default", 1, 1000, Decimal(amount))


def lines(bill: Bill) -> list[tuple[str, str]]:
    return [(line.kind, shown(line.amount, bill.currency)) for line in bill.lines]


def test_half_is_rounded_to_even_once_a_line() -> None:
    bill = make_bill(MONTH, "USD", [one("0.005"), one("0.015", meter="stored")], months())
    assert lines(bill) == [("usage", "0.00"), ("usage", "0.02")]
    assert bill.residue == 0
    bill = make_bill(MONTH, "USD", [one("0.005"), one("0.025", meter="stored")], months())
    assert bill.total == Decimal("0.02")
    assert of_invoice(bill) == {
        "receivable": Decimal("0.02"),
        "unbilled": Decimal("-0.03"),
        "rounding": Decimal("0.01"),
    }


def test_all_kinds_in_their_order() -> None:
    bill = make_bill(
        MONTH,
        "USD",
        [one("3", BEFORE), one("10.123456789012")],
        months(Decimal(20), Decimal(5)),
        credit=Decimal("7.5"),
        tax=Tax("VAT", Decimal(19)),
    )
    assert lines(bill) == [
        ("usage", "10.12"),
        ("adjustment", "3.00"),
        ("included", "-5.00"),
        ("minimum", "14.88"),  # late usage is of another month
        ("credit", "-7.50"),
        ("tax", "2.94"),  # 2.945, to the even cent
    ]
    assert (bill.subtotal, bill.total) == (Decimal("15.50"), Decimal("18.44"))
    assert of_invoice(bill) == {
        "receivable": Decimal("18.44"),
        "unbilled": Decimal("-5.623456789012"),
        "revenue:included": Decimal(5),
        "revenue:minimum": Decimal("-14.88"),
        "tax": Decimal("-2.94"),
        "rounding": Decimal("0.003456789012"),
    }


def test_what_is_included_is_of_the_months_own_usage() -> None:
    used = [one("3", BEFORE), one("10")]
    bill = make_bill(MONTH, "USD", used, months(included=Decimal(50)))
    assert lines(bill) == [("usage", "10.00"), ("adjustment", "3.00"), ("included", "-10.00")]


def test_late_usage_is_included_as_if_it_had_been_in_time() -> None:
    """Ten are included and four were used: six of what comes late cost nothing."""
    billed = Billed(usage=Decimal(4), included=Decimal(-4))
    found = months() | {BEFORE: Month(Terms(included=Decimal(10)), billed)}
    bill = make_bill(MONTH, "USD", [one("8", BEFORE)], found)
    assert lines(bill) == [("adjustment", "8.00"), ("included", "-6.00")]
    assert bill.lines[1].month == BEFORE


def test_late_usage_is_paid_by_the_minimum_that_was_charged() -> None:
    """Of a minimum of 100, 97 were charged beyond 3 of usage."""
    month = Month(Terms(minimum=Decimal(100)), Billed(usage=Decimal(3), minimum=Decimal(97)))
    bill = make_bill(MONTH, "USD", [one("50", BEFORE)], months() | {BEFORE: month})
    assert lines(bill) == [("adjustment", "50.00"), ("minimum", "-50.00")]
    bill = make_bill(MONTH, "USD", [one("120", BEFORE)], months() | {BEFORE: month})
    assert lines(bill) == [("adjustment", "120.00"), ("minimum", "-97.00")]


def test_a_month_that_is_billed_again_asks_for_what_is_missing() -> None:
    """Its usage of 90 is on a later invoice, since its own was void then."""
    month = Month(Terms(minimum=Decimal(100)), Billed(usage=Decimal(90)))
    bill = make_bill(MONTH, "USD", [], months() | {MONTH: month})
    assert lines(bill) == [("minimum", "10.00")]


def test_credit_pays_for_no_minimum() -> None:
    used = [one("7")]
    bill = make_bill(MONTH, "USD", used, months(Decimal(20), Decimal(5)), credit=Decimal(50))
    assert lines(bill) == [
        ("usage", "7.00"),
        ("included", "-5.00"),
        ("minimum", "18.00"),
        ("credit", "-2.00"),
    ]


def test_credit_that_pays_for_all_leaves_no_cent() -> None:
    used = [one("0.004"), one("0.004", meter="stored"), one("0.006", meter="cold_load")]
    bill = make_bill(MONTH, "USD", used, months(), credit=Decimal("0.014"))
    assert bill.total == 0
    assert of_invoice(bill) == {}


def test_nothing_used_is_no_invoice() -> None:
    assert make_bill(MONTH, "USD", [], months(included=Decimal(5))).lines == ()
    assert make_bill(MONTH, "USD", [one("0")], months(), credit=Decimal(9)).lines == ()
    assert make_bill(MONTH, "USD", [], months(Decimal(5))).total == 5


@pytest.mark.parametrize(
    ("currency", "amount", "text"),
    [("USD", "12.345", "12.34"), ("JPY", "1250.5", "1250"), ("KWD", "1.0005", "1.000"),
     ("EUR", "-0.001", "0.00"), ("CLF", "1", "1.0000"), ("USD", "1E+3", "1000.00")],
)  # fmt: skip
def test_minor_units(currency: str, amount: str, text: str) -> None:
    assert shown(Decimal(amount), currency) == text
    assert rounded(Decimal(amount), currency) % minor_unit(currency) == 0


def test_exact_amounts_are_shown_without_an_exponent() -> None:
    assert [plain(Decimal(text)) for text in ("1E-12", "10.50", "100", "0E-12")] == [
        "0.000000000001",
        "10.5",
        "100",
        "0",
    ]


def test_payments_and_notes_balance() -> None:
    assert sum(of_payment(Decimal("5.55")).values()) == 0
    note = of_credit_note([("revenue:output", Decimal(3)), ("revenue:output", Decimal(2))], EXACT)
    assert note == {"revenue:output": Decimal(5), "tax": EXACT, "receivable": -5 - EXACT}
    with pytest.raises(ArithmeticError, match="add up to"):
        of_invoice(Bill("USD", (Line(1, "credit", Decimal(-1), Decimal(0)), _odd())))


def _odd() -> Line:
    """A kind that the books know no account for."""
    kind: object = "gift"
    return Line(2, kind, Decimal(1), Decimal(1))  # type: ignore[arg-type]
