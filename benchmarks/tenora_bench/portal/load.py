"""How much there is on a platform whose portal is measured: one tenant with many adapters and
requests, and others beside it. Knows no database."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tenora_bench.money.records import Adapter

DAYS = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class PortalLoad:
    """`requests` are of one tenant, which has all of the `adapters`, over the `DAYS` before
    `end`; `others` are tenants with a hundredth of its requests each."""

    adapters: int
    requests: int
    others: int
    end: datetime
    seed: int = 0

    @property
    def begin(self) -> datetime:
        return self.end - DAYS

    @property
    def requests_of_another(self) -> int:
        return self.requests // 100


Fill = Callable[[Path, str, PortalLoad], list[Adapter]]
"""Stores a load for the tenant of that id in the database that runs under a data directory; its
adapters, in no order."""


def by_popularity(adapters: Sequence[Adapter], seed: int) -> list[Adapter | None]:
    """Drawn evenly of this list, the n-th adapter comes with a weight of 1 / n, and the base model
    as often as the first."""
    weights = [1 / (1 + place) for place in range(len(adapters))]
    drawn = random.Random(seed).choices(adapters, weights, k=4 * len(adapters))
    return [*drawn, *[None] * drawn.count(adapters[0]), *adapters]
