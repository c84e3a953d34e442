"""Makes and seals the usage events of a day, in a process of its own where there are many: as text
that COPY takes, and as what of it the sums need. For `tenora bench books`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from multiprocessing import get_context
from typing import NamedTuple
from uuid import UUID

from tenora_bench.growth.size import LARGE
from tenora_platform.secret import ServerSecret
from tenora_platform.usage.seal import EVENT_COLUMNS, Seals

PROCESSES = 2
FEW = 50_000
"""Fewer events are made where they are wanted: processes take longer to start."""
_TOGETHER = 8
"""Events of one series, hour and kind, as an agent's requests come: so a sum is of some events."""
_AHEAD = 3  # days that are made and not stored yet
_SECOND = timedelta(seconds=1)
_NULL = "\\N"
COPY = f"COPY usage_events ({', '.join((*EVENT_COLUMNS, 'seal'))}) FROM STDIN"


class Kind(NamedTuple):
    """What an event used, and what it costs by the list in force."""

    prompt: int
    cached: int
    output: int
    amount: Decimal


class Payer(NamedTuple):
    """A tenant's number and those of its series."""

    no: int
    series: tuple[int, ...]


class Together(NamedTuple):
    """Events of one row of sums. `payer` and `kind` are places in the lists."""

    payer: int
    series_id: int
    hour: int
    kind: int
    events: int


class Day(NamedTuple):
    begin: datetime
    events: int


class Made(NamedTuple):
    begin: datetime
    copied: bytes  # what COPY takes
    moved: list[Together]


@dataclass(frozen=True)
class Maker:
    """The same day is made the same way each time, but for its seals."""

    secret: bytes
    payers: Sequence[Payer]
    kinds: Sequence[Kind]
    price_no: int

    def make(self, day: Day) -> Made:
        chance = random.Random(day.begin.toordinal())
        moved, left = list[Together](), day.events
        while left:
            count = min(_TOGETHER, left)
            # One in turn, so that of few tenants each has some.
            payer = self._payer(chance) if moved else day.begin.toordinal() % len(self.payers)
            series = chance.choice(self.payers[payer].series)
            kind = chance.randrange(len(self.kinds))
            moved.append(Together(payer, series, chance.randrange(24), kind, count))
            left -= count
        moved.sort(key=lambda each: each.hour)  # an index by time is of rows that come in its order
        seals = Seals(ServerSecret(self.secret))
        lines = [line for each in moved for line in self._lines(seals, chance, day.begin, each)]
        return Made(day.begin, "".join(lines).encode(), moved)

    def _payer(self, chance: random.Random) -> int:
        others = len(self.payers) - 1
        return max(chance.randrange(others + LARGE) - LARGE + 1, 0)

    def _lines(
        self, seals: Seals, chance: random.Random, begin: datetime, each: Together
    ) -> Iterator[str]:
        prompt, cached, output, amount = self.kinds[each.kind]
        ended = begin + timedelta(hours=each.hour, seconds=chance.randrange(10, 3000))
        for _ in range(each.events):
            ended += timedelta(microseconds=chance.randrange(1, 50_000_000))
            duration = chance.randrange(4, 32) * 250.0
            arrived = int((ended - timedelta(milliseconds=duration)).timestamp() * 1000)
            request = UUID(int=arrived << 80 | chance.getrandbits(80))
            no, load = self.payers[each.payer].no, 0.0
            values = (
                *(request, 0, no, each.series_id, ended, ended + _SECOND, prompt, cached, output),
                *(512, 0, "stop", None, 2.0, load, duration / 4, duration, 0, None, None),
                *(self.price_no, amount, None),
            )
            shown = (_NULL if value is None else str(value) for value in values)
            yield "\t".join((*shown, str(seals.event(values)))) + "\n"


def made_days(maker: Maker, days: Sequence[Day]) -> Iterator[Made]:
    """Day by day, in order, with few of them in memory."""
    if sum(day.events for day in days) <= FEW:
        yield from map(maker.make, days)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, context, _begin, (maker,)) as pool:
        waiting: list[Future[Made]] = []
        for day in days:
            waiting.append(pool.submit(_make, day))
            if len(waiting) == _AHEAD:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


_makers: list[Maker] = []  # of this process: sent once, not with each day


def _begin(maker: Maker) -> None:
    _makers.append(maker)


def _make(day: Day) -> Made:
    return _makers[0].make(day)


def days_of(count: int, begin: datetime, end: datetime) -> list[Day]:
    """Events spread evenly over the days (UTC) from `begin` until before `end`."""
    whole = (end - begin).days
    return [
        Day(
            (begin + timedelta(days=number)).astimezone(UTC),
            count * (number + 1) // whole - count * number // whole,
        )
        for number in range(whole)
    ]
