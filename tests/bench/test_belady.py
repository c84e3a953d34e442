"""The offline bound: never above what the best policy pays, and exact where it must be."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_bench.cache.belady import Access, least_miss_cost


def best_cost(accesses: list[Access], capacity: int) -> float:
    """By trying everything: after each access any part of what is cached may be kept, with or
    without what was just used."""

    @cache
    def least(number: int, cached: frozenset[int]) -> float:
        if number == len(accesses):
            return 0.0
        access = accesses[number]
        paid = 0.0 if access.key in cached else access.cost_s
        held = sorted({*cached, int(str(access.key))})
        kept = [
            frozenset(some) for size in range(len(held) + 1) for some in combinations(held, size)
        ]
        return paid + min(
            least(number + 1, some) for some in kept if sum(sizes[key] for key in some) <= capacity
        )

    sizes = {int(str(access.key)): access.num_bytes for access in accesses}
    return least(0, frozenset())


ITEMS = st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 5.0)), min_size=2, max_size=4)


@given(items=ITEMS, order=st.lists(st.integers(0, 3), max_size=9), capacity=st.integers(1, 8))
def test_no_policy_pays_less(
    items: list[tuple[int, float]], order: list[int], capacity: int
) -> None:
    accesses = [Access(key % len(items), *items[key % len(items)]) for key in order]
    best = best_cost(accesses, capacity)
    for windows in (1, 3):
        assert least_miss_cost(accesses, capacity, windows) <= best + 1e-9


def test_first_accesses_must_be_paid() -> None:
    accesses = [Access(key, 10, 1.0) for key in range(5)] * 3
    assert least_miss_cost(accesses, 50) == pytest.approx(5.0)
    assert least_miss_cost(accesses, 9) == 15.0  # nothing fits
    assert least_miss_cost([], 10) == 0.0


def test_windows_see_a_shortage_that_the_mean_hides() -> None:
    """A crowd at first, then one item alone: over all there is room, at the crowd there is not."""
    crowd = [Access(key, 10, 1.0) for key in range(20)] * 5
    alone = [Access("alone", 10, 1.0)] * 400
    single = least_miss_cost(crowd + alone, 40, windows=1)
    several = least_miss_cost(crowd + alone, 40, windows=10)
    assert single < several <= 21 + 80


def test_cyclic_accesses_come_near_what_belady_pays() -> None:
    """Of `n` items in a circle a cache of `m` hits at most `(m - 1) / (n - 1)` of the time."""
    rounds, items, room = 40, 20, 8
    accesses = [Access(key, 1, 1.0) for key in range(items)] * rounds
    belady = items * rounds * (1 - (room - 1) / (items - 1))
    bound = least_miss_cost(accesses, room)
    assert 0.9 * belady < bound <= belady * 1.02
