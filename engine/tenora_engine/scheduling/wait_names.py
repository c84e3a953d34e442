"""WaitNames: what the places of a WaitClock's readings are called: a cause, and whose doing it was.
It knows the labels of tenants, and neither who waits nor when."""

from __future__ import annotations

from tenora_engine.scheduling.wait_clock import (
    FIRST_TENANT,
    OWN,
    Float64s,
    queue_of,
    size_for,
)
from tenora_engine.scheduling.wait_sums import WaitSums
from tenora_engine.telemetry import OTHER, Telemetry, WaitPart, WaitTotal

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
        parts.sort(key=_by_length)
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
        places = waited.nonzero()[0]
        rest_s = own_s = 0.0
        if len(places) > PARTS_MAX:
            places = waited.argpartition(-PARTS_MAX)[-PARTS_MAX:]
            rest_s = max(float(waited.sum()) - float(waited[places].sum()), 0.0)
        cells, parts = self._cells, []
        for place, seconds in zip(places.tolist(), waited[places].tolist(), strict=True):
            if place == OWN or (own and (place - FIRST_TENANT) >> 1 == own):
                own_s += seconds
            elif place == queue_of(0):
                rest_s += seconds
            else:
                cause, other = cells[place]
                parts.append(WaitPart("preempted" if again else cause, other, 1000 * seconds))
        for place, seconds in ((OWN, own_s), (queue_of(0), rest_s)):
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


def _by_length(part: WaitPart) -> float:
    return -part.ms
