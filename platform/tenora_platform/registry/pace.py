"""How fast one process takes uploads: never at the cost of the tokens that it hands on meanwhile.
Knows time, not what is uploaded."""

from __future__ import annotations

import asyncio
import time

_PIECE_COST_MAX_S = 0.02
"""A piece's own cost is far less; beyond it, what the event loop did was others' work."""
_PAUSE_MAX_S = 1.0  # so that an upload moves on, however many come at once


class Pace:
    """One for all uploads of a process: to take them costs about `share` of a core at most. A
    faster machine takes more, and a busier one less."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._spent_s = 0.0  # of the event loop's processor time, when the last piece had come
        self._free_s = 0.0  # from when the next one may be taken

    async def keep(self) -> None:
        """Between two pieces of an upload, on the event loop: waits for the next one's time."""
        if self._share >= 1:
            return
        spent_s, now_s = time.thread_time(), asyncio.get_running_loop().time()
        cost_s = min(max(0.0, spent_s - self._spent_s), _PIECE_COST_MAX_S)
        self._spent_s = spent_s
        self._free_s = max(now_s - cost_s, self._free_s) + cost_s / self._share
        await asyncio.sleep(min(self._free_s - now_s, _PAUSE_MAX_S))
