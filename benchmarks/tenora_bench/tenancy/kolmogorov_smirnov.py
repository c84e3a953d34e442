"""The two-sample Kolmogorov-Smirnov test for samples of equal size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from math import comb
from typing import NamedTuple


class KSTest(NamedTuple):
    """`distance` is the largest between the two empirical distributions; `p_value` the probability
    of one as large if both samples come from one distribution."""

    distance: float
    p_value: float


def ks_test(first: Sequence[float], second: Sequence[float]) -> KSTest:
    """Two-sided and exact (Gnedenko and Korolyuk 1951); ties only make it more careful. Raises
    ValueError unless the samples are of one size, and not empty."""
    size = len(first)
    if not size or len(second) != size:
        raise ValueError(f"samples of {size} and {len(second)} values; they must be as many")
    ranked = sorted(first), sorted(second)
    steps = max(
        abs(bisect_right(ranked[0], value) - bisect_right(ranked[1], value))
        for value in (*first, *second)
    )
    return KSTest(steps / size, _p_value(size, steps))


def _p_value(size: int, steps: int) -> float:
    """Of a distance of `steps / size`: the paths from 0 to 0 in 2 `size` steps of one up or down
    that reach `steps` or `-steps`, of all, by the reflection principle."""
    if steps == 0:
        return 1.0
    paths = sum(
        (-1) ** (i - 1) * comb(2 * size, size - i * steps) for i in range(1, size // steps + 1)
    )
    return float(Fraction(2 * paths, comb(2 * size, size)))
