"""The books behind `waits`: clocks that divide time among causes, the numbers of causes and
tenants, and sums of waits."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from tenora_engine.telemetry import OTHER, Telemetry, WaitPart, WaitTotal

Float64s = npt.NDArray[np.float64]

# What takes a second: these, and then two for each tenant by its number.
START, LOAD, OWN, NOBODYS_PAGES = range(4)
FIRST_TENANT = 4


def queue_of(number: int) -> int:
    """A step that served the tenant of this number."""
    return FIRST_TENANT + 2 * number


def pages_of(number: int) -> int:
    """Memory that it held."""
    return FIRST_TENANT + 2 * number + 1


def size_for(num_tenants: int) -> int:
    return FIRST_TENANT + 2 * num_tenants


class WaitClock:
    """`reading[i]` are the seconds that `i` has taken since it was made, while `rates[i]` is the
    part of each second that it takes now; they add up to 1. Readings are never changed in place,
    so that to keep one costs nothing."""

    __slots__ = ("_last_s", "members", "rated_s", "rates", "reading")

    def __init__(self, size: int, nobodys: int = START) -> None:
        """`nobodys`: what takes all as long as no rates are set."""
        self.reading: Float64s = np.zeros(size)
        self.rates: Float64s = np.zeros(size)
        self.rates[nobodys] = 1.0
        self.rated_s = -np.inf  # when the rates were last looked at
        self.members = 0  # that go by it; its owner counts them
        self._last_s: float | None = None

    def advance(self, now_s: float) -> None:
        """Until now it went at the present rates."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is not None and now_s != last_s:
            self.reading = self.reading + self.rates * (now_s - last_s)

    def set_rates(self, parts: Float64s, total: float, nobodys: int = START) -> None:
        """From now on, by `parts`, which add up to `total` and are taken over; where that is 0,
        `nobodys` takes all."""
        if total > 0:
            parts /= total
        else:
            parts[nobodys] = 1.0
        self.rates = parts


_OTHERS_QUEUE = queue_of(0)

TENANTS_MAX = 256
"""As many have a place of their own in a reading, OTHER among them."""

PARTS_MAX = 6
"""Of one sequence's wait; what is left is told as one, behind OTHER's queue."""

Cell = tuple[str, str]
"""A cause, and whose doing it was; "" where it was no other tenant's."""


class WaitNames:
    """Tenants get numbers as they come."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._numbers = {OTHER: 0}  # by label
        self._cells: list[Cell] = [("start", ""), ("load", ""), ("own", ""), ("pages", "")]
        self._cells += [("queue", OTHER), ("pages", OTHER)]
        self.most = min(telemetry.max_tenants + 1, TENANTS_MAX)
        self.size = size_for(self.most)  # of a reading

    def number(self, label: str) -> int:
        """Of whoever has this label; OTHER's where it has no number."""
        return self._numbers.get(label, 0)

    def number_of(self, tenant_key: str) -> int:
        """Of a tenant; a new one gets one while there are any."""
        label = self._telemetry.label(tenant_key)
        number = self._numbers.get(label)
        if number is None:
            if len(self._numbers) >= self.most:
                return 0
            number = self._numbers[label] = len(self._numbers)
            self._cells += [("queue", label), ("pages", label)]
        return number

    def parts(
        self, tenant: str, waited: Float64s | None, waited_again: Float64s | None
    ) -> list[WaitPart]:
        """Of what a sequence of this label's has waited, before it first ran and after, the largest
        first."""
        own, parts = self.number(tenant), list[WaitPart]()
        for reading, again in ((waited, False), (waited_again, True)):
            if reading is not None:
                parts += self._parts(reading, own, again)
        parts.sort(key=attrgetter("ms"), reverse=True)
        return parts

    def totals(self, name: str, tenant: str, sums: WaitSums, again: bool) -> list[WaitTotal]:
        """Of one label's waits in one class."""
        own = self.number(tenant)
        cells: dict[Cell, list[float]] = {}
        for place, seconds, sequences, is_apart in sums.places():
            if not is_apart and place >= FIRST_TENANT:
                place = queue_of(0) + (place - FIRST_TENANT) % 2
            summed = cells.setdefault(self._cell(place, own, again), [0.0, 0])
            summed[0] += seconds
            summed[1] += sequences
        return [
            WaitTotal(name, tenant, cause, other, seconds, int(sequences))
            for (cause, other), (seconds, sequences) in cells.items()
        ]

    def _parts(self, waited: Float64s, own: int, again: bool) -> list[WaitPart]:
        rest_s = own_s = 0.0
        if np.count_nonzero(waited) > PARTS_MAX:
            places = waited.argpartition(-PARTS_MAX)[-PARTS_MAX:]
            largest = waited[places].tolist()
            rest_s = max(float(waited.sum()) - sum(largest), 0.0)
        else:
            places = waited.nonzero()[0]
            largest = waited[places].tolist()
        cells, parts = self._cells, []
        for place, seconds in zip(places.tolist(), largest, strict=True):
            if place == OWN or (own and (place - FIRST_TENANT) >> 1 == own):
                own_s += seconds
            elif place == _OTHERS_QUEUE:
                rest_s += seconds
            else:
                cause, other = cells[place]
                parts.append(WaitPart("preempted" if again else cause, other, 1000 * seconds))
        for place, seconds in ((OWN, own_s), (_OTHERS_QUEUE, rest_s)):
            if seconds:
                cause, other = cells[place]
                parts.append(WaitPart("preempted" if again else cause, other, 1000 * seconds))
        return parts

    def _cell(self, place: int, own: int, again: bool) -> Cell:
        """Of the waits of a tenant by its number."""
        if own and (place - FIRST_TENANT) >> 1 == own:
            place = OWN
        cause, other = self._cells[place]
        return ("preempted" if again else cause), other


COUNTED_S = 0.001
"""A sequence is counted among those that waited for something once it was that long."""

NEW_MAX = 32
"""Sequences whose waits are not in the sums yet."""


class WaitSums:
    """Sums only rise. A place that is once told apart, or not, stays so."""

    def __init__(self, size: int) -> None:
        self._seconds: Float64s = np.zeros(size)
        self._sequences = np.zeros(size, np.int64)
        self._known = np.zeros(size, np.int8)  # 1 is told apart, -1 is not, 0 is not known yet
        self._new: list[tuple[Float64s, Float64s | None]] = []  # not added yet

    def add(self, parts: Float64s, told: Float64s | None) -> None:
        """A sequence has waited `parts` so far, of which `told` has been added before."""
        self._new.append((parts, told))
        if len(self._new) >= NEW_MAX:
            self._fold()

    def learn(self, left: int) -> int:
        """Of the tenants that are new here, so many at most are told apart from now on; returns how
        many are."""
        self._fold()
        new = np.flatnonzero((self._known == 0) & (self._seconds > 0))
        new = new[new >= FIRST_TENANT]
        self._known[new] = -1
        self._known[new[:left]] = 1
        return min(len(new), left)

    def places(self) -> Iterator[tuple[int, float, int, bool]]:
        """Place, seconds, sequences and whether it is told apart, of those that are above 0, as of
        the last `learn`."""
        for place in np.flatnonzero(self._seconds).tolist():
            is_apart = bool(self._known[place] > 0)
            yield place, float(self._seconds[place]), int(self._sequences[place]), is_apart

    def _fold(self) -> None:
        """Several at once: one by one they would take too much of a step's time."""
        whole = [parts for parts, told in self._new if told is None]
        if whole:
            rows = np.array(whole)
            self._seconds += rows.sum(axis=0)
            self._sequences += (rows >= COUNTED_S).sum(axis=0)
        for parts, told in self._new:
            if told is not None:
                self._seconds += parts - told
                self._sequences += (parts >= COUNTED_S) & (told < COUNTED_S)
        self._new.clear()
