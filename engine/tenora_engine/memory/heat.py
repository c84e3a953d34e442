"""Heat: a count of uses that fades with time (LRFU: Lee et al., 2001). Nodes of the prefix tree and
adapters carry it; policies read it."""

from __future__ import annotations

import math

FADE_S = 60.0
"""Time in which a use loses 63% of its weight."""


def fade(seconds: float) -> float:
    """How much of a use is left after `seconds`."""
    return math.exp(-seconds / FADE_S)
