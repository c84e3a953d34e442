"""Results that may be some seconds old, where making one takes long."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from tenora_platform.single_flight import SingleFlight

T = TypeVar("T")


class Remembered(Generic[T]):
    """By key, for `seconds` since the call began; of `most` keys. Those who ask while a call runs
    get what it gives. Lives on one asyncio loop, so each process has its own."""

    def __init__(
        self, seconds: float, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._flights: SingleFlight[T] = SingleFlight()
        self._kept: dict[Hashable, tuple[float, T]] = {}

    async def get(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Raises what `call` raises, which is not remembered."""
        kept = self._kept.get(key)
        if kept is not None and self._clock() - kept[0] < self._seconds:
            return kept[1]
        return await self._flights.run(key, lambda: self._make(key, call))

    async def _make(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        began = self._clock()
        found = await call()
        if len(self._kept) >= self._most:
            self._kept.clear()
        self._kept[key] = (began, found)
        return found
