"""A tenant's money as plain Python says it is: usage, credit, ledger and invoices of a quarter, in
Fractions. Nothing of the platform is imported; the tests drive it beside the platform."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fractions import Fraction

from money_prices_model import Charge, Event, PriceModel, next_month

MINOR_DIGITS = {"USD": 2, "EUR": 2, "JPY": 0, "KWD": 3}  # ISO 4217
NEVER = datetime.max.replace(tzinfo=UTC)
ZERO = Fraction(0)
KINDS = ("usage", "adjustment", "included", "minimum", "credit", "tax")


def rounded(amount: Fraction, currency: str) -> Fraction:
    """To the currency's smallest coin, halves to the even one (which is what `round` does)."""
    scale = 10 ** MINOR_DIGITS[currency]
    return Fraction(round(amount * scale), scale)


def ceil_nanos(amount: Fraction) -> int:
    """What budgets count of one event."""
    return -(-(amount * 10**9).numerator // (amount * 10**9).denominator)


@dataclass
class Grant:
    """`lapsed`: what was left of it when it expired; None before somebody said so."""

    name: str
    amount: Fraction
    created: datetime
    kind: str = "granted"
    expires: datetime | None = None
    lapsed: Fraction | None = None
    booked: Fraction = ZERO  # of what it paid, in the ledger so far


@dataclass(frozen=True)
class Line:
    """Of an invoice: exact, and as it is charged. The exact amounts are what the books have."""

    kind: str
    exact: Fraction
    amount: Fraction
    quantity: int = 0
    month: str | None = None  # of usage
    meter: str | None = None
    class_: str | None = None
    prices: str | None = None  # the list's name


Sums = Mapping[tuple[str, str, str, str], tuple[int, Fraction]]
"""Quantity and amount by (month, meter, class, list)."""


@dataclass
class Invoice:
    """`had`: the usage that it is about, what came to nothing and has no line among it."""

    month: str
    currency: str
    lines: Sequence[Line]
    had: Sums
    void: bool = False
    noted: Fraction = ZERO  # by credit notes
    paid: Fraction = ZERO

    @property
    def total(self) -> Fraction:
        return sum((line.amount for line in self.lines), ZERO)

    def exact(self, *kinds: str) -> Fraction:
        return sum((line.exact for line in self.lines if line.kind in kinds), ZERO)


@dataclass
class Ledger:
    """What each account's entries add up to: debit above 0."""

    balances: dict[tuple[str, str], Fraction] = field(default_factory=lambda: defaultdict(Fraction))

    def post(self, currency: str, entries: Mapping[str, Fraction]) -> None:
        assert sum(entries.values()) == 0, entries
        for account, amount in entries.items():
            self.balances[account, currency] += amount

    def shown(self) -> dict[tuple[str, str], Fraction]:
        return {key: balance for key, balance in self.balances.items() if balance}


@dataclass
class TenantBooks:
    """Of one tenant; `prices` are everybody's. Credit and terms are of one currency."""

    tenant: str
    prices: PriceModel
    plan: str | None = "standard"
    currency: str = "USD"
    tax_rate: Fraction = ZERO
    charges: dict[str, Charge] = field(default_factory=dict)
    waiting: dict[str, Event] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    invoices: list[Invoice] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    posted: dict[tuple[date, str, str], Fraction] = field(
        default_factory=lambda: defaultdict(Fraction)
    )

    # Usage

    def store(self, events: Iterable[Event]) -> None:
        """Each counts once, however often it comes."""
        for event in events:
            if event.id in self.charges or event.id in self.waiting:
                continue
            self._rate(event)

    def rate_waiting(self) -> None:
        """After a price came: in the order of their ids."""
        for event in sorted(self.waiting.values(), key=lambda each: each.id):
            del self.waiting[event.id]
            self._rate(event)

    def _rate(self, event: Event) -> None:
        charge = self.prices.rate(event)
        if charge is None:
            self.waiting[event.id] = event
        else:
            self.charges[event.id] = charge

    def spent(self, start: datetime, end: datetime) -> Fraction:
        found = (each.amount for each in self.charges.values() if start <= each.event.at < end)
        return sum(found, ZERO)

    def priced(self) -> Iterator[tuple[Charge, str, int, Fraction]]:
        """(charge, meter, quantity, amount) of every meter that has moved."""
        for charge in self.charges.values():
            for meter, amount in charge.amounts.items():
                yield charge, meter, charge.event.quantities[meter], amount

    # Ledger

    def post_usage(self) -> None:
        """What the days' sums have beyond what the ledger has of them."""
        sums: dict[tuple[date, str, str], Fraction] = defaultdict(Fraction)
        for charge, meter, _, amount in self.priced():
            assert charge.prices is not None
            sums[charge.event.at.date(), charge.prices.currency, meter] += amount
        for (day, currency, meter), amount in sums.items():
            more = amount - self.posted[day, currency, meter]
            self.posted[day, currency, meter] = amount
            self.ledger.post(currency, {"unbilled": more, f"revenue:{meter}": -more})

    # Credit

    def grant(self, grant: Grant) -> None:
        self.grants.append(grant)
        source = "cash" if grant.kind == "bought" else "promotion"
        entries = {source: grant.amount, f"credit:{grant.kind}": -grant.amount}
        self.ledger.post(self.currency, entries)

    def by_expiry(self) -> list[Grant]:
        """In the order in which they are spent: Python's sort keeps the older first."""
        return sorted(self.grants, key=lambda each: each.expires or NEVER)

    def paid_by_grants(self, until: datetime) -> list[tuple[Grant, Fraction]]:
        """What each has paid of the usage until then: usage after the first grant was made, the
        grant that expires first before the others, none after it has expired. What was said of one
        that expired stays."""
        since = min((grant.created for grant in self.grants), default=NEVER)
        found, used = [], ZERO
        for grant in self.by_expiry():
            end = min(grant.expires or NEVER, until)
            paid = min(max(self.spent(since, end) - used, ZERO), grant.amount)
            if grant.lapsed is not None:
                kept = grant.amount - grant.lapsed
                paid = kept if grant.expires and grant.expires <= until else min(paid, kept)
            used += paid
            found.append((grant, paid))
        return found

    def apply_credit(self, until: datetime) -> None:
        """What grants have paid of the usage until then is in the ledger."""
        for grant, paid in self.paid_by_grants(until):
            more = max(paid - grant.booked, ZERO)
            grant.booked += more
            entries = {f"credit:{grant.kind}": more, "unbilled": -more}
            self.ledger.post(self.currency, entries)

    def close_expired(self, now: datetime) -> None:
        """What an expired grant has not paid lapses: bought credit is income then, what was given
        had been no expense."""
        for grant in self.by_expiry():
            if grant.expires is None or grant.expires > now or grant.lapsed is not None:
                continue
            self.apply_credit(grant.expires)
            grant.lapsed = grant.amount - grant.booked
            other = "credit:lapsed" if grant.kind == "bought" else "promotion"
            entries = {f"credit:{grant.kind}": grant.lapsed, other: -grant.lapsed}
            self.ledger.post(self.currency, entries)

    # Invoices

    def valid(self, currency: str) -> list[Invoice]:
        return [each for each in self.invoices if each.currency == currency and not each.void]

    def run(self, month: str, now: datetime) -> list[Invoice]:
        """The month's invoices are final from now on; again changes nothing."""
        self.post_usage()
        self.apply_credit(next_month(month))
        self.close_expired(now)
        made = []
        terms = self.prices.terms(self.tenant, self.plan, month)
        currencies = {each.prices.currency for each in self.charges.values() if each.prices}
        for currency in sorted({*currencies, terms.currency} if terms else currencies):
            if any(each.month == month for each in self.valid(currency)):
                continue
            had = self.unbilled(month, currency)
            lines = self.lines(month, currency, had)
            if lines:
                made.append(Invoice(month, currency, lines, had))
                self.ledger.post(currency, self.entries(made[-1]))
        self.invoices += made
        return made

    def unbilled(self, month: str, currency: str) -> Sums:
        """What was used until the month's end and no invoice that holds has had."""
        sums: dict[tuple[str, str, str, str], tuple[int, Fraction]] = defaultdict(lambda: (0, ZERO))
        for charge, meter, quantity, amount in self.priced():
            event, prices = charge.event, charge.prices
            assert prices is not None
            if prices.currency == currency and event.month <= month:
                key = (event.month, meter, event.class_, prices.name)
                sums[key] = (sums[key][0] + quantity, sums[key][1] + amount)
        for invoice in self.valid(currency):
            for key, (quantity, amount) in invoice.had.items():
                if key[0] <= month:
                    sums[key] = (sums[key][0] - quantity, sums[key][1] - amount)
        return {key: each for key, each in sums.items() if any(each)}

    def lines(self, month: str, currency: str, had: Sums) -> list[Line]:
        """Usage of the month, then of the months before it, each rounded once; then what is said
        in whole coins; credit; tax on what is left."""
        found = [
            Line(kind, exact, rounded(exact, currency), quantity, *key)
            for kind in ("usage", "adjustment")
            for key, (quantity, exact) in sorted(had.items())
            if exact and (kind == "usage") == (key[0] == month)
        ]

        def so_far() -> Fraction:
            return sum((line.amount for line in found), ZERO)

        def add(kind: str, exact: Fraction, amount: Fraction) -> None:
            if exact or amount:
                found.append(Line(kind, exact, amount))

        terms = self.prices.terms(self.tenant, self.plan, month)
        of_month = sum((line.amount for line in found if line.kind == "usage"), ZERO)
        if terms is not None and terms.currency == currency:
            included = min(rounded(terms.included, currency), of_month)
            add("included", -included, -included)
            missing = max(rounded(terms.minimum, currency) - so_far(), ZERO)
            add("minimum", missing, missing)
        if currency == self.currency:
            add("credit", *self._credit(sum((line.exact for line in found), ZERO), so_far()))
        tax = rounded(so_far() * self.tax_rate, currency)
        add("tax", tax, tax)
        return found

    def _credit(self, exact: Fraction, amount: Fraction) -> tuple[Fraction, Fraction]:
        """What credit has paid by the ledger and no invoice has shown, at most what is open. Where
        it pays for all there is, not a cent is left by rounding."""
        shown = sum((-each.exact("credit") for each in self.valid(self.currency)), ZERO)
        paid = sum((grant.booked for grant in self.grants), ZERO) - shown
        if paid >= exact:
            return -max(exact, ZERO), -max(amount, ZERO)
        return -paid, -min(rounded(paid, self.currency), max(amount, ZERO))

    def entries(self, invoice: Invoice) -> dict[str, Fraction]:
        tax = invoice.exact("tax")
        return {
            "receivable": invoice.total,
            "unbilled": -invoice.exact("usage", "adjustment", "credit"),
            "revenue:included": -invoice.exact("included"),
            "revenue:minimum": -invoice.exact("minimum"),
            "tax": -tax,
            "rounding": invoice.exact(*KINDS) - invoice.total,
        }

    def void(self, invoice: Invoice) -> None:
        """As if it had not been; a new one may be made for its month."""
        invoice.void = True
        entries = {account: -amount for account, amount in self.entries(invoice).items()}
        self.ledger.post(invoice.currency, entries)

    def pay(self, invoice: Invoice, amount: Fraction) -> None:
        invoice.paid += amount
        self.ledger.post(invoice.currency, {"cash": amount, "receivable": -amount})
