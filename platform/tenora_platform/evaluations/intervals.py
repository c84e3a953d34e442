"""How sure a score is. Pure."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054


def wilson(passed: int, count: int) -> tuple[float, float]:
    """The 95% score interval of a proportion (Wilson 1927), which stays within 0 and 1 and means
    something for few items and for none or all passed. `count` is positive."""
    share, z2 = passed / count, Z_95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z_95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def of_mean(mean: float, deviation: float, count: int) -> tuple[float, float]:
    """The 95% interval of a mean by the normal distribution; `deviation` is the sample's."""
    half = Z_95 * deviation / math.sqrt(count)
    return mean - half, mean + half
