"""OccupancyHours: makes records of what adapters took of an engine's memory, when an hour (UTC) is
over and at the end. A crash loses what is younger than the last record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tenora_engine.events import OccupancyRecord
from tenora_engine.ulid import new_id

if TYPE_CHECKING:  # torch comes with it
    from tenora_engine.engine import Engine

HOUR_S = 3600


class OccupancyHours:
    """`keep` gets the records. The engine need not answer: its meters are read beside it."""

    def __init__(
        self,
        engine: Engine,
        keep: Callable[[Sequence[OccupancyRecord]], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._keep = keep
        self._clock = clock
        self._since_s = clock()
        self._next_s = _hour_after(self._since_s)

    def look(self) -> None:
        """Whether an hour is over."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._close(float(_hour_after(now_s) - HOUR_S))
        elif now_s < self._since_s:  # the clock was put back
            self._since_s, self._next_s = now_s, _hour_after(now_s)

    def end(self) -> None:
        self._close(max(self._clock(), self._since_s))

    def _close(self, until_s: float) -> None:
        records = [
            OccupancyRecord(
                event_id=new_id("occ"),
                tenant=tenant,
                adapter_digest=digest,
                tier=tier,
                kb_s=kb_s,
                begins_s=self._since_s,
                ends_s=until_s,
            )
            for tier, occupied in self._engine.take_occupancy().items()
            for (tenant, digest), kb_s in sorted(occupied.items())
        ]
        self._since_s, self._next_s = until_s, _hour_after(until_s)
        if records:
            self._keep(records)


def _hour_after(at_s: float) -> int:
    return int(at_s // HOUR_S + 1) * HOUR_S
