"""Volume tiers against a model that counts unit by unit and in fractions: splits, positions, and
that a month costs the same in whatever order its events come."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.billing.price_lists import Meter, PriceList, Prices, Scope, Tier, Tiers
from tenora_platform.billing.rating import (
    Billable,
    Rating,
    UnratableError,
    Volume,
    dearest,
    graduated,
    place,
    priced,
    rate_again,
    split,
    volumes_of,
)

T0 = datetime(2030, 1, 1, tzinfo=UTC)
CHANGE = datetime(2030, 1, 15, tzinfo=UTC)
DAYS = (T0, CHANGE - timedelta(hours=1), CHANGE, datetime(2030, 2, 1, tzinfo=UTC))


@st.composite
def tiers(draw: st.DrawFn, *, reach: int) -> Tiers:
    begins = draw(st.sets(st.integers(1, reach), max_size=4))
    prices = st.decimals(min_value=0, max_value=Decimal("99999.999999"), places=6)
    return tuple(Tier(begin, draw(prices)) for begin in sorted({0, *begins}))


def plain(of: Tiers, position: int, quantity: int) -> Fraction:
    """What these units cost, each asked for its own tier."""
    total = Fraction(0)
    for unit in range(position, position + quantity):
        total += Fraction([tier.per_million for tier in of if tier.from_quantity <= unit][-1])
    return total / 10**6


def whole(of: Tiers, quantity: int) -> Fraction:
    """The same from 0 on, of any quantity: what lies between the tiers' ends."""
    total = Fraction(0)
    for tier, after in itertools.zip_longest(of, of[1:]):
        end = quantity if after is None else min(quantity, after.from_quantity)
        total += max(0, end - tier.from_quantity) * Fraction(tier.per_million)
    return total / 10**6


@given(of=tiers(reach=60), position=st.integers(0, 80), quantity=st.integers(1, 80))
def test_each_unit_has_the_price_of_its_tier(of: Tiers, position: int, quantity: int) -> None:
    parts = split(of, position, quantity)
    assert sum(part.quantity for part in parts) == quantity
    assert all(part.quantity > 0 for part in parts)
    found = sum((part.quantity * Fraction(part.per_million) for part in parts), Fraction(0))
    assert found / 10**6 == plain(of, position, quantity)
    most = dearest(of, position)
    assert all(part.per_million <= most for part in parts)


@given(of=tiers(reach=2**61), position=st.integers(0, 2**61), quantity=st.integers(1, 2**61))
def test_large_quantities_are_exact(of: Tiers, position: int, quantity: int) -> None:
    between = Fraction(graduated(of, position + quantity)) - Fraction(graduated(of, position))
    parts = split(of, position, quantity)
    assert (
        sum((p.quantity * Fraction(p.per_million) for p in parts), Fraction(0)) / 10**6 == between
    )
    assert Fraction(graduated(of, quantity)) == whole(of, quantity)


def lists_of(before: Tiers, after: Tiers) -> Prices:
    """Two versions with tiers, the second from the middle of the month on; flex has no tiers."""
    common: dict[tuple[Meter, str], Tiers] = {
        ("uncached_prefill", ""): (Tier(0, Decimal(1)),),
        ("output", "flex"): (Tier(0, Decimal("0.5")),),
    }
    scope = Scope(None, None, None, None)
    return Prices(
        [
            PriceList("old", 1, scope, "USD", T0, CHANGE, {**common, ("output", ""): before}),
            PriceList("new", 2, scope, "USD", CHANGE, None, {**common, ("output", ""): after}),
        ]
    )


NOTHING = Billable(
    event_id="e",
    tenant_id="t",
    adapter_id=None,
    model="m",
    plan="p",
    class_="priority",
    event_time=T0,
    prompt_tokens=0,
    cached_tokens=0,
    output_tokens=0,
    cold_loads=0,
)
usage = st.builds(
    partial(replace, NOTHING),
    event_id=st.integers(0, 10**9).map(str),
    tenant_id=st.sampled_from(["t", "u"]),
    model=st.sampled_from(["m", "n"]),
    event_time=st.sampled_from(DAYS),
    prompt_tokens=st.integers(0, 20),
    output_tokens=st.integers(0, 60),
    class_=st.sampled_from(["default", "priority", "flex"]),
)


def rate_in(prices: Prices, batches: list[list[Billable]]) -> list[Rating]:
    """As sinks do: a batch at a time, each from where the volumes stand."""
    volumes: dict[Volume, int] = defaultdict(int)
    ratings = []
    for batch in batches:
        found = [priced(prices, event) for event in batch]
        wanted = volumes_of(found)
        ratings += place(found, {volume: volumes[volume] for volume in wanted})
        for volume, quantity in wanted.items():
            volumes[volume] += quantity
    return ratings


@given(
    before=tiers(reach=100),
    after=tiers(reach=100),
    events=st.lists(usage, max_size=25),
    data=st.data(),
)
def test_a_month_costs_the_same_in_any_order(
    before: Tiers, after: Tiers, events: list[Billable], data: st.DataObject
) -> None:
    """And what it costs is its tiers over what was used in all, for each version, tenant, month,
    model and class apart; late events of a version that has ended included."""
    prices = lists_of(before, after)
    shuffled = data.draw(st.permutations(events))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(events)), max_size=4)) | {0, len(events)})
    ratings = rate_in(prices, [shuffled[a:b] for a, b in itertools.pairwise(cuts)])
    expected, used = Fraction(0), dict[tuple[object, ...], int]()
    for event in events:
        expected += Fraction(event.prompt_tokens, 10**6)
        if event.class_ == "flex":
            expected += Fraction(event.output_tokens, 2 * 10**6)
            continue
        of = after if event.event_time >= CHANGE else before
        key = (of, event.event_time >= CHANGE, event.tenant_id, f"{event.event_time:%Y-%m}")
        place_ = (*key, event.model, event.class_)
        used[place_] = used.get(place_, 0) + event.output_tokens
    expected += sum((whole(key[0], count) for key, count in used.items()), Fraction(0))  # type: ignore[arg-type]
    assert sum((Fraction(rating.amount) for rating in ratings), Fraction(0)) == expected
    check_positions(prices, ratings)


def check_positions(prices: Prices, ratings: list[Rating]) -> None:
    """No gaps, no overlaps; and each can be rated again by them alone."""
    places: dict[Volume, list[tuple[int, int]]] = defaultdict(list)
    for rating in ratings:
        found = priced(prices, rating.event)
        assert (rating.positions is None) == (not found.volumes())
        for volume, quantity in found.volumes().items():
            assert rating.positions is not None
            begin = rating.positions[rating.event.meters.index(volume.meter)]
            places[volume].append((begin, begin + quantity))
        if rating.price is not None:
            again = rate_again(rating.price, rating.event, rating.positions)
            assert again == rating
    for spans in places.values():
        at = 0
        for begin, end in sorted(spans):
            assert begin == at
            at = end


def test_occupancy_has_tiers_too() -> None:
    of = (Tier(0, Decimal(2)), Tier(100, Decimal(1)))
    prices = Prices(
        [PriceList("a", 1, Scope(None, None, None, None), "USD", T0, None, {("stored", ""): of})]
    )
    event = replace(NOTHING, class_="", occupancy=("stored", 80))
    first, second = rate_in(prices, [[event], [replace(event, event_id="f")]])
    assert (first.amount, first.positions) == (Decimal("0.000160"), (0,))
    assert (second.amount, second.positions) == (Decimal("0.000100"), (80,))
    assert [tuple(part) for part in second.lines[0].parts] == [(20, 2), (60, 1)]
    volume = Volume("t", date(2030, 1, 1), 1, "m", "", "stored")
    assert volumes_of([priced(prices, event)]) == {volume: 80}


def test_tiers_need_a_position() -> None:
    """One that was lost is not taken for 0."""
    prices = lists_of((Tier(0, Decimal(1)), Tier(5, Decimal(0))), (Tier(0, Decimal(1)),))
    found = priced(prices, replace(NOTHING, output_tokens=9))
    assert found.price is not None
    with pytest.raises(UnratableError, match="position in them is missing"):
        rate_again(found.price, found.event, None)


@given(
    of=tiers(reach=100),
    used=st.integers(0, 120),
    more=st.integers(0, 120),
    output=st.integers(1, 99),
)
def test_an_estimate_is_never_below(of: Tiers, used: int, more: int, output: int) -> None:
    """Whatever has been used beyond what is known."""
    prices = lists_of(of, of)
    found = priced(prices, replace(NOTHING, prompt_tokens=10, output_tokens=output))
    meter: Meter = "output"
    known = dict.fromkeys(found.volumes(), used)
    most = found.rating_at_most(known).amount
    assert most >= found.rating(dict.fromkeys([meter], used + more)).amount
