"""OccupancyHours: makes records of what adapters took of an engine's memory, when an hour (UTC) is
over and at the end. A crash loses what is younger than the last record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tenora_engine.clocks import Clock, steady, wall
from tenora_engine.events import OccupancyRecord
from tenora_engine.ulid import new_id

if TYPE_CHECKING:  # torch comes with it
    from tenora_engine.engine import Engine

HOUR_S = 3600

JUMP_S = 60.0
"""What two clocks differ by since a record was begun is taken for a jump from here on."""


class OccupancyHours:
    """`keep` gets the records. The engine need not answer: its meters are read beside it.

    What was taken is measured by a steady clock; the wall clock says only to which hours it
    belongs. Where that jumps, a record ends at once, as long as what is in it, and a new one begins
    where the wall clock is then."""

    def __init__(
        self,
        engine: Engine,
        keep: Callable[[Sequence[OccupancyRecord]], object],
        clock: Clock = wall,
        steady_clock: Clock | None = None,
    ) -> None:
        """`steady_clock`: `clock` itself, where that is simulated."""
        self._engine = engine
        self._keep = keep
        self._clock = clock
        self._steady = steady_clock or (steady if clock is wall else clock)
        self._since_s, self._since_steady_s = clock(), self._steady()
        self._next_s = _hour_after(self._since_s)

    def look(self) -> None:
        """Whether an hour is over."""
        now_s, lasted_s = self._clock(), self._steady() - self._since_steady_s
        if abs(now_s - self._since_s - lasted_s) > JUMP_S:
            self._close(now_s - lasted_s, now_s, now_s)
        elif now_s >= self._next_s:
            self._close(self._since_s, float(_hour_after(now_s) - HOUR_S), now_s)

    def end(self) -> None:
        self.look()
        now_s = self._clock()
        self._close(self._since_s, max(now_s, self._since_s), now_s)

    def _close(self, begins_s: float, until_s: float, now_s: float) -> None:
        records = [
            OccupancyRecord(
                event_id=new_id("occ"),
                tenant=tenant,
                adapter_digest=digest,
                tier=tier,
                kb_s=kb_s,
                begins_s=begins_s,
                ends_s=until_s,
            )
            for tier, occupied in self._engine.take_occupancy().items()
            for (tenant, digest), kb_s in sorted(occupied.items())
        ]
        self._since_s, self._next_s = until_s, _hour_after(until_s)
        self._since_steady_s = self._steady() - (now_s - until_s)
        if records:
            self._keep(records)


def _hour_after(at_s: float) -> int:
    return int(at_s // HOUR_S + 1) * HOUR_S
