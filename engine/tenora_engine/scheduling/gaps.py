"""GapWatch: how near the service gap of each class came to its bound, by minute. It looks often, so
that whoever asks seldom misses nothing; it decides nothing."""

from __future__ import annotations

import math

from tenora_engine.scheduling.waiting import WaitingQueue
from tenora_engine.telemetry import GapMinute

PERIOD_S = 0.1
"""How often it looks, while anything waits: that is O(tenants that wait)."""

MINUTES_KEPT = 5


class GapWatch:
    """Of one engine. Of each minute the moment at which a gap was nearest to its bound."""

    def __init__(self) -> None:
        self._looked_s = -math.inf
        self._minutes: dict[tuple[int, str], GapMinute] = {}

    def look(self, queue: WaitingQueue, now_s: float) -> None:
        """A step has been planned."""
        if 0 <= now_s - self._looked_s < PERIOD_S or not len(queue):
            return
        self._looked_s = now_s
        minute = int(now_s // 60)
        for name, (gap, bound) in queue.contested().items():
            key = minute, name
            known = self._minutes.get(key)
            if known is None:
                self._forget(minute)
            elif gap * known.bound <= known.gap * bound:
                continue
            self._minutes[key] = GapMinute(minute * 60, name, gap, bound)

    def recent(self) -> list[GapMinute]:
        """The last minutes in which two tenants waited in one class."""
        return list(self._minutes.values())

    def _forget(self, minute: int) -> None:
        self._minutes = {
            key: each for key, each in self._minutes.items() if key[0] > minute - MINUTES_KEPT
        }
