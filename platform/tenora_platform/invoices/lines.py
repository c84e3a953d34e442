"""What an invoice of one month says: lines out of sums of usage, in their order, each rounded once.
Pure and exact; it knows no database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal

from tenora_platform.invoices.currency import exact_sum, negated, percent, rounded

LineKind = Literal["usage", "adjustment", "included", "minimum", "credit", "tax"]
USED: tuple[LineKind, ...] = ("usage", "adjustment")
"""Lines of usage: they have month, meter, class, price version and quantity."""

_METERS = (
    "uncached_prefill",
    "cached_prefill",
    "output",
    "cold_load",
    "device_residency",
    "host_residency",
    "stored",
)
_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Used:
    """What no invoice has had yet of one meter, in one class, at one price version, in the month
    that begins at `month`. `amount` is exact."""

    month: date
    meter: str
    class_: str
    price_version_no: int
    quantity: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Terms:
    """Of a plan, in the currency of the invoice: the least of a month, and what of a month's usage
    costs nothing."""

    minimum: Decimal = _ZERO
    included: Decimal = _ZERO


@dataclass(frozen=True, slots=True)
class Tax:
    """`rate` in percent."""

    name: str
    rate: Decimal


@dataclass(frozen=True, slots=True)
class Line:
    """`amount` is what is asked for, in whole minor units; `exact` what it stands for in the books.
    A line of usage says which; the others leave that empty."""

    no: int
    kind: LineKind
    exact: Decimal
    amount: Decimal
    month: date | None = None
    meter: str | None = None
    class_: str | None = None
    price_version_no: int | None = None
    quantity: int | None = None


@dataclass(frozen=True, slots=True)
class Bill:
    """All lines of one invoice. `residue` is what its rounding gave away (below 0: took)."""

    currency: str
    lines: tuple[Line, ...]

    def sum_of(self, *kinds: LineKind) -> Decimal:
        return exact_sum(line.amount for line in self.lines if line.kind in kinds)

    @property
    def tax(self) -> Decimal:
        return self.sum_of("tax")

    @property
    def total(self) -> Decimal:
        return exact_sum(line.amount for line in self.lines)

    @property
    def subtotal(self) -> Decimal:
        return exact_sum(line.amount for line in self.lines if line.kind != "tax")

    @property
    def residue(self) -> Decimal:
        exact = exact_sum(line.exact for line in self.lines)
        return exact_sum((exact, negated(self.total)))


def make_bill(
    period: date,
    currency: str,
    used: Iterable[Used],
    *,
    terms: Terms,
    credit: Decimal = _ZERO,
    tax: Tax | None = None,
) -> Bill:
    """The lines of the month that begins at `period`, in this order:

    - usage of the month, by meter, class and price version;
    - adjustments: the same of earlier months, which came too late for theirs;
    - included: at most what the month's usage comes to;
    - minimum: what everything so far lacks of it;
    - credit: at most what everything so far comes to (`credit` is what grants paid, exact);
    - tax, on what is left.

    Usage that comes to nothing has no line. Each line is rounded half to even once; what that
    changes is `Bill.residue`. Without lines there is nothing to invoice.
    """
    lines: list[Line] = []

    def add(kind: LineKind, exact: Decimal, amount: Decimal) -> None:
        if exact or amount:
            lines.append(Line(len(lines) + 1, kind, exact, amount))

    for each in sorted(used, key=lambda each: _place(each, period)):
        if each.amount:
            lines.append(_used_line(len(lines) + 1, each, period, currency))
    of_month = exact_sum(line.amount for line in lines if line.kind == "usage")
    included = min(rounded(terms.included, currency), max(of_month, _ZERO))
    add("included", negated(included), negated(included))
    least = rounded(terms.minimum, currency)
    missing = max(exact_sum((least, negated(_total(lines)))), _ZERO)
    add("minimum", missing, missing)
    add("credit", *_paid(lines, credit, currency))
    if tax is not None and lines:
        due = rounded(percent(_total(lines), tax.rate), currency)
        add("tax", due, due)
    return Bill(currency, tuple(lines))


def _place(used: Used, period: date) -> tuple[bool, date, int, str, int]:
    known = used.meter in _METERS
    meter = _METERS.index(used.meter) if known else len(_METERS)
    return used.month != period, used.month, meter, used.class_, used.price_version_no


def _used_line(no: int, used: Used, period: date, currency: str) -> Line:
    return Line(
        no=no,
        kind="usage" if used.month == period else "adjustment",
        exact=used.amount,
        amount=rounded(used.amount, currency),
        month=used.month,
        meter=used.meter,
        class_=used.class_,
        price_version_no=used.price_version_no,
        quantity=used.quantity,
    )


def _total(lines: Sequence[Line]) -> Decimal:
    return exact_sum(line.amount for line in lines)


def _paid(lines: Sequence[Line], credit: Decimal, currency: str) -> tuple[Decimal, Decimal]:
    """(exact, amount) of the credit line. Credit that pays for all of it leaves not a cent over,
    whatever the rounding of the lines made of them."""
    open_exact = max(exact_sum(line.exact for line in lines), _ZERO)
    open_amount = max(_total(lines), _ZERO)
    if credit >= open_exact:
        return negated(open_exact), negated(open_amount)
    return negated(credit), negated(min(rounded(credit, currency), open_amount))
