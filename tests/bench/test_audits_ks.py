"""The two-sample KS test against all orders that there are, a published table and its limit."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_bench.tenancy.kolmogorov_smirnov import ks_test

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def apart(size: int, steps: int) -> tuple[list[float], list[float]]:
    """Samples at distance `steps / size`."""
    return [float(n) for n in range(size)], [n + steps - 0.5 for n in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_p_value_is_the_part_of_all_orders_that_is_as_far_apart(size: int) -> None:
    places = range(2 * size)
    distances = [
        ks_test([*chosen], [place for place in places if place not in chosen]).distance
        for chosen in combinations(places, size)
    ]
    for steps in range(1, size + 1):
        as_far = sum(distance >= steps / size - 1e-12 for distance in distances) / len(distances)
        test = ks_test(*apart(size, steps))
        assert test.distance == pytest.approx(steps / size)
        assert test.p_value == pytest.approx(as_far, abs=1e-12)


# Critical values at 5% of Massey, "Distribution table for the deviation between two sample
# cumulatives" (1952): the least distance, in steps, whose probability is at most 5%.
@pytest.mark.parametrize(("size", "steps"), [(5, 5), (8, 6), (10, 7), (15, 8), (20, 9), (30, 11)])
def test_published_critical_values(size: int, steps: int) -> None:
    assert ks_test(*apart(size, steps)).p_value <= 0.05
    assert ks_test(*apart(size, steps - 1)).p_value > 0.05


def test_large_samples_follow_kolmogorovs_limit() -> None:
    size = 4000
    for steps in (60, 90, 120):
        root = steps / size * math.sqrt(size / 2)
        limit = 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * root) ** 2) for k in range(1, 20))
        assert ks_test(*apart(size, steps)).p_value == pytest.approx(limit, rel=0.02)


@given(values)
def test_a_sample_does_not_differ_from_itself(sample: list[float]) -> None:
    assert ks_test(sample, sample) == (0.0, 1.0)


@given(values, st.randoms())
def test_order_and_scale_do_not_matter(sample: list[float], draw: random.Random) -> None:
    other = [draw.uniform(-1e6, 1e6) for _ in sample]
    mixed = draw.sample(sample, len(sample))
    scaled = ks_test([2 * v for v in mixed], [2 * v for v in other])
    assert ks_test(sample, other) == scaled == ks_test(other, sample)


def test_samples_of_one_distribution_are_rarely_told_apart() -> None:
    draw = random.Random(4)
    found = [
        ks_test([draw.gauss(0, 1) for _ in range(250)], [draw.gauss(0, 1) for _ in range(250)])
        for _ in range(200)
    ]
    assert sum(test.p_value <= 0.05 for test in found) <= 20
    shifted = ks_test(
        [draw.gauss(0, 1) for _ in range(250)], [draw.gauss(0.5, 1) for _ in range(250)]
    )
    assert shifted.p_value < 0.001


@pytest.mark.parametrize(("first", "second"), [([], []), ([1.0], []), ([1.0], [1.0, 2.0])])
def test_samples_must_be_as_many(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="as many"):
        ks_test(first, second)
