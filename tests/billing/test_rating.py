"""Rating against an independent model in exact fractions, and the boundaries of price versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.billing.price_lists import (
    METERS,
    Meter,
    PriceList,
    Prices,
    Scope,
    Tier,
    Tiers,
)
from tenora_platform.billing.rating import (
    SEQUENCE_METERS,
    Billable,
    MissingPriceError,
    Rating,
    UnratableError,
    choose,
    exact_sum,
    place,
    priced,
)

T0 = datetime(2030, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)
QUARTER = ((0, "0.25"),)


def tiers(*of: tuple[int, str | Decimal]) -> Tiers:
    return tuple(Tier(quantity, Decimal(price)) for quantity, price in of)


def price_list(
    name: str,
    *,
    adapter: str | None = None,
    tenant: str | None = None,
    model: str | None = None,
    plan: str | None = None,
    begin: datetime = T0,
    end: datetime | None = None,
    prices: Mapping[tuple[Meter, str], Tiers] | None = None,
) -> PriceList:
    if prices is None:
        prices = {(meter, ""): tiers(*QUARTER) for meter in METERS}
    return PriceList(name, 1, Scope(adapter, tenant, plan, model), "USD", begin, end, prices)


def event(
    at: datetime = T0,
    *,
    prompt: int = 10,
    cached: int = 4,
    output: int = 5,
    loads: int = 0,
    class_: str = "default",
    occupancy: tuple[Meter, int] | None = None,
) -> Billable:
    return Billable(
        event_id="e:0",
        tenant_id="t",
        adapter_id="a",
        model="m",
        plan="p",
        class_=class_,
        event_time=at,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        cold_loads=loads,
        occupancy=occupancy,
    )


def rate(lists: Sequence[PriceList], of: Billable) -> Rating:
    return place([priced(Prices(lists), of)], {})[0]


counts = st.integers(0, 2**62)
amounts = st.decimals(min_value=0, max_value=Decimal("99999999999999.999999"), places=6)


@given(
    counted=st.tuples(counts, counts, counts, st.integers(0, 1)),
    each=st.tuples(amounts, amounts, amounts, amounts),
)
def test_amounts_are_exact(
    counted: tuple[int, int, int, int], each: tuple[Decimal, Decimal, Decimal, Decimal]
) -> None:
    uncached, cached, output, loads = counted
    model = dict(zip(SEQUENCE_METERS, counted, strict=True))
    per_million = dict(zip(SEQUENCE_METERS, each, strict=True))
    exact = {
        meter: Fraction(model[meter]) * Fraction(per_million[meter]) / 10**6 for meter in model
    }
    of = event(prompt=uncached + cached, cached=cached, output=output, loads=loads)
    lists = [price_list("a", prices={(m, ""): tiers((0, p)) for m, p in per_million.items()})]
    if sum(exact.values()) >= 10**26:  # beyond NUMERIC(38, 12)
        with pytest.raises(UnratableError, match="book"):
            rate(lists, of)
        return
    rated = rate(lists, of)
    assert {line.meter: line.quantity for line in rated.lines} == {
        meter: quantity for meter, quantity in model.items() if quantity
    }
    for line in rated.lines:
        assert Fraction(line.amount) == exact[line.meter]
        exponent = line.amount.as_tuple().exponent
        assert isinstance(exponent, int)
        assert exponent >= -12  # fits NUMERIC(38, 12) unrounded
    assert Fraction(rated.amount) == sum(exact.values(), Fraction(0))
    assert rated.positions is None
    assert exact_sum(line.amount for line in rated.lines) == rated.amount


def test_boundaries() -> None:
    end = T0 + timedelta(days=30)
    lists = Prices([price_list("old", begin=T0, end=end), price_list("new", begin=end)])
    assert choose(lists, event(T0)).id == "old"
    assert choose(lists, event(end - TICK)).id == "old"
    assert choose(lists, event(end)).id == "new"
    with pytest.raises(MissingPriceError):
        choose(lists, event(T0 - TICK))


def test_the_more_specific_list_wins() -> None:
    """Adapter before tenant before plan before model, whatever else is said; of equals the newest;
    what holds for somebody else never."""
    at = event(T0 + timedelta(days=2))
    ladder = [
        price_list("elsewhere", model="x", plan="p"),
        price_list("nobody", tenant="other"),
        price_list("general", begin=T0 + timedelta(days=1)),
        price_list("model", model="m"),
        price_list("plan", plan="p"),
        price_list("plan's model", plan="p", model="m"),
        price_list("tenant", tenant="t"),
        price_list("tenant's plan and model", tenant="t", plan="p", model="m"),
        price_list("adapter", adapter="a", tenant="t"),
        price_list("newer", adapter="a", tenant="t", begin=T0 + timedelta(days=1)),
    ]
    for top in range(3, len(ladder) + 1):
        assert choose(Prices(ladder[:top]), at).id == ladder[top - 1].id
        assert choose(Prices(reversed(ladder[:top])), at).id == ladder[top - 1].id


scopes = st.builds(
    Scope, *[st.sampled_from([None, name, f"other {name}"]) for name in ("a", "t", "p", "m")]
)


@given(
    made=st.lists(
        st.tuples(scopes, st.integers(0, 9), st.one_of(st.none(), st.integers(0, 9))), max_size=12
    ),
    usage=st.builds(Scope, *[st.sampled_from([None, name]) for name in ("a", "t", "p", "m")]),
    hour=st.integers(0, 9),
)
def test_the_choice_is_that_of_a_plain_search(
    made: list[tuple[Scope, int, int | None]], usage: Scope, hour: int
) -> None:
    lists = [
        PriceList(
            str(number),
            number,
            scope,
            "USD",
            T0 + timedelta(hours=begin),
            None if end is None else T0 + timedelta(hours=end),
            {},
        )
        for number, (scope, begin, end) in enumerate(made)
    ]
    fitting = [
        (tuple(0 if part is None else 1 for part in scope), begin)
        for scope, begin, end in made
        if all(part in (None, own) for part, own in zip(scope, usage, strict=True))
        and begin <= hour
        and (end is None or hour < end)
    ]
    found = Prices(lists).choose(usage, T0 + timedelta(hours=hour))
    if not fitting:
        assert found is None
        return
    assert found is not None
    scope, begin, _ = made[found.no]
    assert (tuple(0 if part is None else 1 for part in scope), begin) == max(fitting)


def held(meter: Meter) -> Billable:
    return event(prompt=0, cached=0, output=0, class_="", occupancy=(meter, 1))


USED: Mapping[Meter, Billable] = {
    "uncached_prefill": event(prompt=1, cached=0, output=0),
    "cached_prefill": event(prompt=1, cached=1, output=0),
    "output": event(prompt=0, cached=0, output=1),
    "cold_load": event(prompt=0, cached=0, output=0, loads=1),
    "device_residency": held("device_residency"),
    "host_residency": held("host_residency"),
    "stored": held("stored"),
}


@pytest.mark.parametrize("meter", METERS)
def test_a_missing_meter_rates_nothing(meter: Meter) -> None:
    """Of every meter: other prices do not stand in for it, and without it the rest is not rated."""
    others = {(other, ""): tiers(*QUARTER) for other in METERS if other != meter}
    partial = price_list("a", prices=others)
    with pytest.raises(MissingPriceError, match=meter):
        rate([partial], USED[meter])
    for other in METERS:
        if other != meter:
            assert [line.meter for line in rate([partial], USED[other]).lines] == [other]
    if meter in SEQUENCE_METERS:
        with pytest.raises(MissingPriceError, match=meter):
            rate([partial], event(loads=1))


@pytest.mark.parametrize("meter", SEQUENCE_METERS)
@pytest.mark.parametrize("class_", ["default", "batch", "flex"])
def test_a_class_has_its_own_price_or_that_of_any(meter: Meter, class_: str) -> None:
    of = replace(USED[meter], class_=class_)
    own, any_ = tiers((0, "2")), tiers((0, "1"))
    both = price_list("a", prices={(meter, class_): own, (meter, ""): any_})
    assert rate([both], of).amount == Decimal("0.000002")
    assert rate([both], replace(of, class_="else")).amount == Decimal("0.000001")
    only = price_list("a", prices={(meter, class_): own})
    assert rate([only], of).amount == Decimal("0.000002")
    with pytest.raises(MissingPriceError, match="else"):
        rate([only], replace(of, class_="else"))


@pytest.mark.parametrize(
    "scope",
    [Scope("b", "t", None, None), Scope(None, "u", None, None), Scope(None, None, "q", None)],
)
def test_a_list_of_somebody_else_is_no_price(scope: Scope) -> None:
    other = replace(price_list("a"), scope=scope)
    with pytest.raises(MissingPriceError, match="no price for model 'm'"):
        rate([other], event())


def test_tiers_without_a_beginning_are_no_price() -> None:
    """The API does not let them in; should they be there, nothing is given away."""
    late = price_list("a", prices={("output", ""): tiers((5, "1"))})
    with pytest.raises(MissingPriceError, match="output"):
        rate([late], USED["output"])


def test_what_did_not_move_needs_no_price() -> None:
    still = rate([], event(prompt=0, cached=0, output=0))
    assert still.price is None
    assert (still.lines, still.positions, still.price_version_no) == ((), None, 0)
    assert still.amount == 0
