"""What may happen to a tenant's money in a quarter, drawn by hypothesis: usage in and out of order,
prices announced, credit, invoices, what is taken back. It knows the model's words only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from money_model import Grant
from money_prices_model import (
    METERS,
    OCCUPANCY,
    TICK,
    TOKENS,
    Event,
    PriceList,
    Tiers,
    begin_of,
    next_month,
)

CLASSES = ("interactive", "default", "flex")
ADAPTERS = (None, "a", "b")
KEYS = ("key_1", "key_2")
GRACE = timedelta(days=3)


@dataclass(frozen=True)
class Who:
    """Names of one history: nobody else's prices hold for it."""

    tenant: str
    model: str
    plan: str
    other_plan: str
    adapters: dict[str | None, str | None]  # of the strategy's names -> ids


@dataclass(frozen=True, kw_only=True)
class Step:
    now: datetime


@dataclass(frozen=True, kw_only=True)
class Use(Step):
    """Records come, some of them again."""

    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Announce(Step):
    prices: PriceList


@dataclass(frozen=True, kw_only=True)
class Give(Step):
    grant: Grant


@dataclass(frozen=True, kw_only=True)
class Work(Step):
    """The worker: usage into the ledger, expired credit."""


@dataclass(frozen=True, kw_only=True)
class Run(Step):
    month: str


@dataclass(frozen=True, kw_only=True)
class Move(Step):
    """To its other plan, or back."""

    plan: str  # "plan" or "other"


@dataclass(frozen=True, kw_only=True)
class Void(Step):
    """One of the final invoices, by its place among them."""

    place: int


@dataclass(frozen=True, kw_only=True)
class Pay(Step):
    place: int
    part: Fraction  # of what is due


@dataclass(frozen=True, kw_only=True)
class GiveBack(Step):
    """A credit note to a line of an invoice."""

    place: int
    line: int
    part: Fraction  # of the line


@dataclass(frozen=True)
class History:
    """`first`: the month in which the quarter begins."""

    first: str
    tax_rate: Fraction
    currency: str
    steps: tuple[Step, ...]


def months_from(first: str) -> list[str]:
    found = [first]
    while len(found) < 3:
        found.append(f"{next_month(found[-1]):%Y-%m}")
    return found


prices = st.one_of(
    st.integers(0, 10**8).map(lambda millionths: Fraction(millionths, 10**6)),
    st.sampled_from([Fraction(0), Fraction(5000), Fraction(10**6), Fraction(1, 10**6)]),
)
# Four meters at the dearest price stay below 10^9 in money: from there on an event waits, for ever.
counts = st.one_of(st.integers(0, 40), st.integers(0, 3000), st.integers(0, 10**8))


@st.composite
def tiers(draw: st.DrawFn) -> Tiers:
    """Mostly one price; else two or three, with places that usage will meet."""
    ends = draw(st.sampled_from([(), (), (1000,), (10, 5000), (2 * 10**6,)]))
    return tuple((begin, draw(prices)) for begin in (0, *ends))


@st.composite
def price_lists(draw: st.DrawFn, name: str, begins: datetime, currency: str) -> PriceList:
    """Of one scope; sometimes it lacks a meter, so that what used it waits."""
    scope = draw(st.sampled_from(["model", "plan", "plan", "other", "tenant", "adapter"]))
    meters = [meter for meter in METERS if draw(st.integers(0, 30)) < 30]
    found = {(meter, ""): draw(tiers()) for meter in meters}
    for class_ in draw(st.sets(st.sampled_from(CLASSES), max_size=1)):
        found |= {(meter, class_): draw(tiers()) for meter in meters if draw(st.booleans())}
    cents = st.integers(0, 30_000).map(lambda each: Fraction(each, 1000))
    return PriceList(
        name,
        begins,
        found,
        currency=currency,
        minimum=draw(cents) if draw(st.booleans()) else Fraction(0),
        included=draw(cents) if draw(st.booleans()) else Fraction(0),
        **{
            "plan" if scope == "other" else scope: scope
        },  # its name is put in when the history is acted out
    )


@st.composite
def events(draw: st.DrawFn, name: str, now: datetime, edges: Sequence[datetime]) -> Event:
    """That ended some time until now: lately, long ago, or exactly where something begins."""
    past = [edge for edge in edges if edge <= now]
    late = st.timedeltas(timedelta(0), min(timedelta(days=45), now - edges[0]))
    at = draw(
        st.one_of(
            late.map(lambda late: now - late),
            st.timedeltas(timedelta(0), timedelta(hours=1)).map(lambda late: now - late),
            st.sampled_from(past),
            st.sampled_from(past).map(lambda edge: edge - TICK),
        )
    )
    kinds = st.sampled_from([TOKENS, TOKENS, TOKENS, *((each,) for each in OCCUPANCY)])
    quantities = {meter: draw(counts) for meter in draw(kinds)}
    if len(quantities) == 1:  # nobody books an occupancy of nothing
        quantities = {meter: count + 1 for meter, count in quantities.items()}
    if "cold_load" in quantities:
        quantities["cold_load"] %= 2
    stored = "stored" in quantities
    return Event(
        name,
        max(at, edges[0]),
        "tenant",
        quantities,
        adapter=draw(st.sampled_from(ADAPTERS[1:] if len(quantities) == 1 else ADAPTERS)),
        key=None if len(quantities) == 1 else draw(st.sampled_from(KEYS)),
        class_="" if stored else draw(st.sampled_from(CLASSES)),
    )


@st.composite
def histories(draw: st.DrawFn, first: str, most: int = 12, least: int = 3) -> History:
    """Steps in the order of their times; each month is invoiced when its grace is over, sometimes
    twice, sometimes before what is late has come."""
    currency = draw(st.sampled_from(["USD", "USD", "EUR", "JPY", "KWD"]))
    begin = begin_of(first)
    months = months_from(first)
    ends = [next_month(month) for month in months]
    edges = [begin, *ends[:2]]
    moments = st.timedeltas(TICK, ends[-1] - begin).map(lambda offset: begin + offset)
    whole = st.one_of(moments, moments.map(lambda at: at.replace(hour=0, minute=0, second=0)))
    drawn = draw(st.lists(whole, min_size=least, max_size=most))
    times = sorted(max(at, begin + TICK) for at in drawn)
    steps: list[Step] = [
        Announce(now=begin, prices=draw(price_lists("base", begin, currency))),
        *(
            Run(now=end + GRACE, month=month)
            for month, end in zip(months_from(first), ends, strict=True)
        ),
    ]
    for number, now in enumerate(times):
        kind = draw(st.sampled_from("uuuuuuuppgwvvrrmyn"))
        if kind == "p":
            begins = now + draw(st.timedeltas(timedelta(0), timedelta(days=30)))
            edges.append(begins)
            listed = price_lists(f"list{number}", begins, currency)
            steps.append(Announce(now=now, prices=draw(listed)))
        elif kind == "g":
            steps.append(Give(now=now, grant=draw(grants(f"grant{number}", now))))
        elif kind == "w":
            steps.append(Work(now=now))
        elif kind == "m":
            steps.append(Move(now=now, plan=draw(st.sampled_from(["plan", "other"]))))
        elif kind == "r":
            over = [month for month, end in zip(months, ends, strict=True) if end + GRACE <= now]
            steps += [Run(now=now, month=draw(st.sampled_from(over)))] if over else []
        elif kind == "v":
            steps.append(Void(now=now, place=draw(st.integers(0, 5))))
        elif kind in "yn":
            part, place = Fraction(draw(st.integers(1, 5)), 4), draw(st.integers(0, 5))
            line = draw(st.integers(0, 5))
            if kind == "y":
                steps.append(Pay(now=now, place=place, part=part))
            else:
                steps.append(GiveBack(now=now, place=place, line=line, part=part))
        else:
            several = [f"e{number}x{each}" for each in range(draw(st.integers(1, 6)))]
            batch = [draw(events(name, now, sorted(edges))) for name in several]
            again = draw(st.lists(st.sampled_from(batch), max_size=2))
            steps.append(Use(now=now, events=(*batch, *again)))
    steps.sort(key=lambda step: step.now)
    rate = Fraction(draw(st.sampled_from([0, 0, 1900, 775, 2000])), 10_000)
    return History(first, rate, currency, tuple(steps))


@st.composite
def grants(draw: st.DrawFn, name: str, now: datetime) -> Grant:
    expires = draw(st.none() | st.timedeltas(timedelta(hours=1), timedelta(days=70)))
    return Grant(
        name,
        Fraction(draw(st.integers(1, 10**7)), 10**5),
        now,
        draw(st.sampled_from(["granted", "bought"])),
        None if expires is None else now + expires,
    )


def of(who: Who, event: Event, plan: str | None) -> Event:
    """The event as this tenant's, on the plan that it had then."""
    adapter = who.adapters[event.adapter]
    return replace(event, tenant=who.tenant, model=who.model, plan=plan, adapter=adapter)


def scoped(who: Who, prices: PriceList) -> PriceList:
    """The list with this tenant's names in its scope."""
    names: dict[str, Any] = {
        "model": who.model,
        "plan": who.other_plan if prices.plan == "other" else who.plan,
        "tenant": who.tenant,
        "adapter": who.adapters["a"],
    }
    return replace(prices, **{name: names[name] for name in names if getattr(prices, name)})
