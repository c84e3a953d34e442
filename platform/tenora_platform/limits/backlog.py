"""Backlog: what Redis has yet to hear of the limits, in order, and for how long this process may go
on without it. It knows holds and settlements, not who made them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from itertools import islice

import structlog

from tenora_platform.limits.shared import Served, Settlement, SharedLimits
from tenora_platform.operations.metrics import Metrics

SERVED_MAX = 20_000
"""Operations that may wait before nothing more is served without Redis: none is dropped."""
_BATCH = 256
_log = structlog.get_logger(__name__)


class Backlog:
    """Open from when Redis went until it has heard of everything. Settlements are always taken:
    there is one at most for each hold that runs."""

    def __init__(self, fallback_s: float, metrics: Metrics) -> None:
        self._fallback_s = fallback_s
        self._metrics = metrics
        self._waiting: deque[Served | Settlement] = deque()
        self._since_s = 0.0
        self._opened = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def redis_went(self, error: Exception | None = None) -> None:
        """From here on this process is alone, if it was not before."""
        if not self.is_open:
            self._since_s = time.monotonic()
            self._opened.set()
            self._metrics.limits_local.set(1)
            _log.error(
                "Redis does not answer; each process now checks rate limits on its own",
                reason=str(error or ""),
            )

    def left_s(self) -> float | None:
        """Seconds for which requests are served without Redis; None: they are not, or no more."""
        left = self._since_s + self._fallback_s - time.monotonic()
        return left if left > 0 and len(self._waiting) < SERVED_MAX else None

    def add(self, operation: Served | Settlement) -> None:
        self._waiting.append(operation)
        self._metrics.limits_unwritten.set(len(self._waiting))

    async def wait(self, seconds: float) -> bool:
        """Wait until Redis has gone, so long at most; whether it has."""
        try:
            async with asyncio.timeout(seconds):
                await self._opened.wait()
        except TimeoutError:
            return False
        return True

    async def write_to(self, shared: SharedLimits) -> None:
        """Tell Redis everything. Raises RedisError; what is not known to be written stays."""
        while self._waiting:
            batch = list(islice(self._waiting, _BATCH))
            await shared.write(batch)
            for _ in batch:
                self._waiting.popleft()
            self._since_s = time.monotonic()  # it answers: what comes meanwhile is served
            self._metrics.limits_unwritten.set(len(self._waiting))

    def redis_is_back(self) -> bool:
        """Close it, unless something has come meanwhile; whether it is closed."""
        if self._waiting:
            return False
        self._opened.clear()
        self._metrics.limits_local.set(0)
        _log.info("Redis answers again; rate limits are shared again")
        return True
