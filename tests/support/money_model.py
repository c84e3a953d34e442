"""A tenant's money as plain Python says it is: usage, credit, ledger and invoices of a quarter, in
Fractions. Nothing of the platform is imported; the tests drive it beside the platform."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

from money_prices_model import Charge, Event, PriceModel, begin_of, next_month

MINOR_DIGITS = {"USD": 2, "EUR": 2, "JPY": 0, "KWD": 3}  # ISO 4217
NEVER = datetime.max.replace(tzinfo=UTC)
ZERO = Fraction(0)
LAPSED = {"bought": "credit:lapsed", "granted": "promotion"}
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
    month: str | None = None  # of usage and terms
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
    noted: dict[int, Fraction] = field(default_factory=lambda: defaultdict(Fraction))  # by line
    noted_tax: Fraction = ZERO
    paid: Fraction = ZERO

    @property
    def total(self) -> Fraction:
        return sum((line.amount for line in self.lines), ZERO)

    @property
    def due(self) -> Fraction:
        """What is neither paid nor given back by credit notes."""
        return self.total - self.paid - sum(self.noted.values(), self.noted_tax)

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
    plans: list[tuple[datetime, str]] = field(default_factory=list)  # since when another one
    charges: dict[str, Charge] = field(default_factory=dict)
    waiting: dict[str, Event] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    invoices: list[Invoice] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    posted: dict[tuple[date, str, str], Fraction] = field(
        default_factory=lambda: defaultdict(Fraction)
    )

    # Terms

    def plan_at(self, at: datetime) -> str | None:
        found = self.plan
        for since, plan in self.plans:
            if since <= at:
                found = plan
        return found

    def terms(self, month: str, currency: str) -> tuple[Fraction, Fraction]:
        """(minimum, included): each day of the month has a share of those of its last moment."""
        minimum, included = ZERO, ZERO
        end = begin_of(month)
        days = (next_month(month) - end).days
        for _ in range(days):
            end += timedelta(days=1)
            plan = self.plan_at(end - timedelta(microseconds=1))
            found = self.prices.terms(self.tenant, plan, end)
            if found is not None and found.currency == currency:
                minimum += found.minimum / days
                included += found.included / days
        return rounded(minimum, currency), rounded(included, currency)

    # Usage

    def store(self, events: Iterable[Event]) -> None:
        """Each counts once, however often it comes."""
        for event in events:
            if event.id in self.charges or event.id in self.waiting:
                continue
            self._rate(event)

    def rate_waiting(self) -> None:
        """After a price came: in the order in which they came."""
        for event in list(self.waiting.values()):
            del self.waiting[event.id]
            self._rate(event)

    def _rate(self, event: Event) -> None:
        charge = self.prices.rate(event)
        if charge is None:
            self.waiting[event.id] = event
        else:
            self.charges[event.id] = charge

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

    def paid_by_grants(self, until: datetime) -> list[tuple[Grant, Fraction]]:
        """What each has paid of the usage until then, event after event in the order of their
        times: of the grants that hold at that time the one that expires first, then the older. What
        the month includes comes first, and costs no credit."""
        free: dict[str, Fraction] = {}
        order = sorted(self.grants, key=lambda each: (each.expires or NEVER, each.created))
        left = [grant.amount for grant in order]
        for charge in sorted(self.charges.values(), key=lambda each: each.event.at):
            at, owed = charge.event.at, charge.amount
            if at >= until or charge.prices is None or charge.prices.currency != self.currency:
                continue
            month = charge.event.month
            left_free = free.setdefault(month, self.terms(month, self.currency)[1])
            free[month] = left_free - min(owed, left_free)
            owed -= min(owed, left_free)
            for place, grant in enumerate(order):
                if grant.created <= at < (grant.expires or NEVER):
                    pays = min(owed, left[place])
                    left[place] -= pays
                    owed -= pays
        return [(grant, grant.amount - rest) for grant, rest in zip(order, left, strict=True)]

    def apply_credit(self, until: datetime, now: datetime) -> None:
        """What grants have paid of the usage until then is in the ledger, and what one that has
        expired by now has not paid lapses: bought credit is income then, what was given had been
        no expense. What comes late may still be paid by it; nothing is taken back."""
        paid_in_all = {grant.name: paid for grant, paid in self.paid_by_grants(now)}
        for grant, paid in self.paid_by_grants(until):
            expired = grant.expires is not None and grant.expires <= now
            used = max(paid_in_all[grant.name] if expired else paid, grant.booked)
            more, grant.booked = used - grant.booked, used
            self._book(grant, "unbilled", more)
            if expired:
                lapsed = grant.amount - used
                more, grant.lapsed = lapsed - (grant.lapsed or ZERO), lapsed
                self._book(grant, LAPSED[grant.kind], more)

    def _book(self, grant: Grant, other: str, amount: Fraction) -> None:
        self.ledger.post(self.currency, {f"credit:{grant.kind}": amount, other: -amount})

    # Invoices

    def valid(self, currency: str) -> list[Invoice]:
        return [each for each in self.invoices if each.currency == currency and not each.void]

    def run(self, month: str, now: datetime) -> list[Invoice]:
        """The month's invoices are final from now on; again changes nothing."""
        self.post_usage()
        self.apply_credit(next_month(month), now)
        made = []
        currencies = {each.currency for each in self.prices.lists}
        for currency in sorted(currencies):
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

        def add(
            kind: str, exact: Fraction, amount: Fraction | None = None, month: str | None = None
        ) -> None:
            amount = exact if amount is None else amount
            if exact or amount:
                found.append(Line(kind, exact, amount, month=month))

        for each in self.settled(month, currency, found):
            included = min(self.terms(each, currency)[1], self.of_month(each, currency, found))
            add("included", -included - self.billed(each, currency, "included"), month=each)
        exact, amount = sum((line.exact for line in found), ZERO), so_far()
        for each in self.settled(month, currency, found):
            least = self.least(each, month, currency, found)
            add("minimum", least - self.billed(each, currency, "minimum"), month=each)
        if currency == self.currency:
            add("credit", *self._credit(month, exact, amount))
        tax = rounded(so_far() * self.tax_rate, currency)
        add("tax", tax, tax)
        return found

    def settled(self, month: str, currency: str, found: Sequence[Line]) -> list[str]:
        """Whose terms an invoice with these lines is about: its month, those of late usage, and
        those that a minimum was given back to though their own invoice no longer holds."""
        late = {line.month for line in found if line.month not in (None, month)}
        given_back = {
            line.month
            for each in self.valid(currency)
            for line in each.lines
            if line.month is not None
            and line.month < month
            and self.billed(line.month, currency, "minimum") < 0
        }
        return [month, *sorted(each for each in late | given_back if each is not None)]

    def billed(self, month: str, currency: str, *kinds: str) -> Fraction:
        """What invoices that hold have of a month."""
        lines = [line for each in self.valid(currency) for line in each.lines]
        return sum(
            (each.amount for each in lines if each.month == month and each.kind in kinds), ZERO
        )

    def of_month(self, month: str, currency: str, found: Sequence[Line]) -> Fraction:
        """What its usage comes to, on this and on all other invoices."""
        here = [each for each in found if each.month == month]
        here = [each for each in here if each.kind in ("usage", "adjustment")]
        before = self.billed(month, currency, "usage", "adjustment")
        return before + sum((each.amount for each in here), ZERO)

    def least(self, of: str, month: str, currency: str, found: Sequence[Line]) -> Fraction:
        """What all invoices together have of its minimum, this one included: what its usage lacks
        of it, known when its own invoice is made; of an earlier month, less what came since."""
        minimum, included = self.terms(of, currency)
        usage = self.of_month(of, currency, found)
        net = usage - min(included, usage)
        if of == month:
            return max(minimum - net, ZERO)
        charged = self.billed(of, currency, "minimum")
        before = self.billed(of, currency, "usage", "adjustment", "included")
        return max(charged - (net - before), ZERO) if charged else ZERO

    def _credit(self, month: str, exact: Fraction, amount: Fraction) -> tuple[Fraction, Fraction]:
        """What credit has paid of the usage until the month's end and no invoice has shown, at most
        what is open of usage beyond what is included. Where it pays for all there is, not a cent is
        left by rounding."""
        shown = sum((-each.exact("credit") for each in self.valid(self.currency)), ZERO)
        paid = sum((paid for _, paid in self.paid_by_grants(next_month(month))), ZERO)
        paid = max(paid - shown, ZERO)
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

    def void(self, invoice: Invoice) -> bool:
        """As if it had not been; a new one may be made for its month. Not once somebody paid."""
        if invoice.paid or invoice.noted:
            return False
        invoice.void = True
        entries = {account: -amount for account, amount in self.entries(invoice).items()}
        self.ledger.post(invoice.currency, entries)
        return True

    def pay(self, invoice: Invoice, amount: Fraction) -> bool:
        if amount > invoice.due:
            return False
        invoice.paid += amount
        self.ledger.post(invoice.currency, {"cash": amount, "receivable": -amount})
        return True

    def note(self, invoice: Invoice, place: int, amount: Fraction) -> bool:
        """Give back so much of one line, with the tax of all that is given back by now less the tax
        that was given back before. No more than the line, than the invoice and than its tax."""
        line = invoice.lines[place]
        before = sum(invoice.noted.values(), ZERO)
        tax = rounded((before + amount) * self.tax_rate, invoice.currency)
        tax = min(tax, invoice.exact("tax")) - invoice.noted_tax
        if (
            line.kind not in ("usage", "adjustment", "minimum")
            or amount > line.amount - invoice.noted.get(place, ZERO)
            or before + amount + invoice.noted_tax + tax > invoice.total
        ):
            return False
        invoice.noted[place] += amount
        invoice.noted_tax += tax
        revenue = f"revenue:{line.meter or line.kind}"
        entries = {revenue: amount, "tax": tax, "receivable": -amount - tax}
        self.ledger.post(invoice.currency, entries)
        return True
