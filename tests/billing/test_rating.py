"""Rating against an independent model in exact fractions, and the boundaries of price versions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.billing.rating import (
    METERS,
    Billable,
    MissingPriceError,
    PriceList,
    choose,
    exact_sum,
    rate,
)

T0 = datetime(2030, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def price_list(
    name: str,
    *,
    model: str | None = None,
    plan: str | None = None,
    begin: datetime = T0,
    end: datetime | None = None,
    per_million: Mapping[str, Decimal] | None = None,
) -> PriceList:
    prices: Mapping[str, Decimal] = per_million or {m: Decimal("0.25") for m in METERS}
    return PriceList(name, model, plan, "USD", begin, end, prices)


def event(at: datetime = T0, *, prompt: int = 10, cached: int = 4, output: int = 5) -> Billable:
    return Billable("e:0", "t", "m", "p", at, prompt, cached, output)


counts = st.integers(0, 2**62)
prices = st.decimals(min_value=0, max_value=Decimal("99999999999999.999999"), places=6)


@given(uncached=counts, cached=counts, output=counts, each=st.tuples(prices, prices, prices))
def test_amounts_are_exact(
    uncached: int, cached: int, output: int, each: tuple[Decimal, Decimal, Decimal]
) -> None:
    per_million: dict[str, Decimal] = dict(zip(METERS, each, strict=True))
    lines = rate(
        [price_list("a", per_million=per_million)],
        event(prompt=uncached + cached, cached=cached, output=output),
    )
    model = {"uncached_prefill": uncached, "cached_prefill": cached, "output": output}
    assert {line.meter: line.quantity for line in lines} == {m: q for m, q in model.items() if q}
    for line in lines:
        exact = Fraction(line.quantity) * Fraction(per_million[line.meter]) / 10**6
        assert Fraction(line.amount) == exact
        exponent = line.amount.as_tuple().exponent
        assert isinstance(exponent, int)
        assert exponent >= -12  # fits NUMERIC(38, 12) unrounded
    total = sum((Fraction(line.amount) for line in lines), Fraction(0))
    assert Fraction(exact_sum(line.amount for line in lines)) == total


def test_boundaries() -> None:
    end = T0 + timedelta(days=30)
    lists = [price_list("old", begin=T0, end=end), price_list("new", begin=end)]
    assert choose(lists, event(T0)).id == "old"
    assert choose(lists, event(end - TICK)).id == "old"
    assert choose(lists, event(end)).id == "new"
    with pytest.raises(MissingPriceError):
        choose(lists, event(T0 - TICK))


def test_the_more_specific_list_wins() -> None:
    general = price_list("general", begin=T0 + timedelta(days=1))
    model = price_list("model", model="m")
    plan = price_list("plan", plan="p")
    both = price_list("both", model="m", plan="p")
    other = price_list("other", model="x", plan="p")
    at = event(T0 + timedelta(days=2))
    assert choose([general, other], at).id == "general"
    assert choose([model, general], at).id == "model"
    assert choose([model, plan, general], at).id == "plan"
    assert choose([both, plan, model, general], at).id == "both"


def test_a_missing_meter_rates_nothing() -> None:
    partial = price_list("a", per_million={"output": Decimal(1)})
    with pytest.raises(MissingPriceError, match="uncached_prefill"):
        rate([partial], event())
    only_output = rate([partial], event(prompt=0, cached=0, output=7))
    assert [line.meter for line in only_output] == ["output"]
    assert rate([], event(prompt=0, cached=0, output=0)) == []
