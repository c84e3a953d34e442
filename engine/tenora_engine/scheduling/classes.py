"""Service classes: their weights, and which of them is owed service. It knows costs by number, not
what they were for."""

from __future__ import annotations

CLASS_WEIGHTS = {"priority": 4.0, "default": 2.0, "flex": 1.0}
"""The classes, and the part of the engine that each is owed while it has work."""

DEFAULT_CLASS = "default"
LOWEST_CLASS = min(CLASS_WEIGHTS, key=lambda name: CLASS_WEIGHTS[name])

CREDIT_TOKENS = 8192.0
"""How much service (in tokens, see `charges`) a class may be owed for a time in which it had no
work, and how much of what it took beyond its share counts against it later."""

_TOTAL = sum(CLASS_WEIGHTS.values())


def service_class(tier: str) -> str:
    """The class in which a tenant's requests of this tier wait; a tier that no class is named after
    is served as the default."""
    return tier if tier in CLASS_WEIGHTS else DEFAULT_CLASS


class ClassShares:
    """Weighted deficits of the classes (deficit round robin: Shreedhar and Varghese, 1995; kept as
    virtual time, which rises by each charge over the sum of the weights).

    A class is owed service while its own counter lags behind virtual time: it has had less than its
    share of everything charged. Classes which are owed go first; what they leave unused anybody may
    take, and both what an idle class is owed and what a busy one took too much are limited to
    CREDIT_TOKENS, so that neither is made up for without end.
    """

    def __init__(self) -> None:
        self._time = 0.0
        self._counters = dict.fromkeys(CLASS_WEIGHTS, 0.0)

    def is_owed(self, name: str) -> bool:
        return self._counters[name] <= self._time

    def charge(self, name: str, cost: float) -> None:
        weight = CLASS_WEIGHTS[name]
        self._time += cost / _TOTAL
        most = self._time + CREDIT_TOKENS / weight
        self._counters[name] = min(self._counters[name] + cost / weight, most)

    def enter(self, name: str) -> None:
        """The class has work again."""
        least = self._time - CREDIT_TOKENS / CLASS_WEIGHTS[name]
        self._counters[name] = max(self._counters[name], least)
