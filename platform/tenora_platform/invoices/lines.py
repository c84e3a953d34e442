"""What an invoice of one month says: lines out of sums of usage, in their order, each rounded once.
Pure and exact; it knows no database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal

from tenora_platform.billing.terms import Terms
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
class Billed:
    """What other invoices that hold have of a month: amounts of its usage, of what was included
    (below 0) and of its minimum (below 0 where late usage gave some of it back)."""

    usage: Decimal = _ZERO
    included: Decimal = _ZERO
    minimum: Decimal = _ZERO


@dataclass(frozen=True, slots=True)
class Month:
    """The terms of a month in the invoice's currency, and what has been billed of it."""

    terms: Terms
    billed: Billed


@dataclass(frozen=True, slots=True)
class Tax:
    """`rate` in percent."""

    name: str
    rate: Decimal


@dataclass(frozen=True, slots=True)
class Line:
    """`amount` is what is asked for, in whole minor units; `exact` what it stands for in the books.
    Lines of usage, of what is included and of minimums say of which month."""

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
    months: Mapping[date, Month],
    *,
    credit: Decimal = _ZERO,
    tax: Tax | None = None,
) -> Bill:
    """The lines of the month that begins at `period`, in this order:

    - usage of the month, by meter, class and price version;
    - adjustments: the same of earlier months, which came too late for theirs;
    - included: of each of these months, at most what its usage on all invoices comes to;
    - minimum: what the month's usage on all invoices lacks of it; of an earlier month, what its
      late usage now pays for is given back;
    - credit: at most what usage comes to beyond what is included (`credit` is what grants paid,
      exact), for credit pays for no minimum;
    - tax, on what is left.

    `months` has the period and every month that has usage here or was billed more than its usage.
    So all invoices of a month together come to the same, whichever of its usage was late and
    whichever of them were void in between. Usage that comes to nothing has no line. Each line is
    rounded half to even once; what that changes is `Bill.residue`. Without lines there is nothing
    to invoice.
    """
    lines: list[Line] = []

    def add(kind: LineKind, exact: Decimal, amount: Decimal, month: date | None = None) -> None:
        if exact or amount:
            lines.append(Line(len(lines) + 1, kind, exact, amount, month=month))

    for each in sorted(used, key=lambda each: _place(each, period)):
        if each.amount:
            lines.append(_used_line(len(lines) + 1, each, period, currency))
    settled = {
        month: _settle(of, _of_month(lines, month), is_own=month == period)
        for month, of in months.items()
    }
    in_order = sorted(settled, key=lambda month: (month != period, month))
    for month in in_order:
        included = settled[month].included
        add("included", included, included, month)
    open_exact = max(exact_sum(line.exact for line in lines), _ZERO)
    open_amount = max(_total(lines), _ZERO)
    for month in in_order:
        minimum = settled[month].minimum
        add("minimum", minimum, minimum, month)
    add("credit", *_paid(open_exact, open_amount, credit, currency))
    if tax is not None and lines:
        due = rounded(percent(_total(lines), tax.rate), currency)
        add("tax", due, due)
    return Bill(currency, tuple(lines))


def _settle(month: Month, used: Decimal, *, is_own: bool) -> Terms:
    """What of the month's terms this invoice has to say, beyond what others have, where it has so
    much of the month's usage."""
    billed = month.billed
    usage = exact_sum((billed.usage, used))
    included = negated(min(month.terms.included, max(usage, _ZERO)))
    if is_own:
        least = max(exact_sum((month.terms.minimum, negated(usage), negated(included))), _ZERO)
    else:
        grown = exact_sum((used, included, negated(billed.included)))
        least = max(exact_sum((billed.minimum, negated(grown))), _ZERO)
        if not billed.minimum:
            least = _ZERO
    return Terms(
        minimum=exact_sum((least, negated(billed.minimum))),
        included=exact_sum((included, negated(billed.included))),
    )


def _of_month(lines: Iterable[Line], month: date) -> Decimal:
    return _total([line for line in lines if line.month == month])


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


def _paid(
    open_exact: Decimal, open_amount: Decimal, credit: Decimal, currency: str
) -> tuple[Decimal, Decimal]:
    """(exact, amount) of the credit line. Credit that pays for all usage leaves not a cent of it
    over, whatever the rounding of the lines made of them."""
    if credit >= open_exact:
        return negated(open_exact), negated(open_amount)
    return negated(credit), negated(min(rounded(credit, currency), open_amount))
