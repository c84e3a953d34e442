"""One call for all who want the same result at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Lives on one asyncio loop. Nothing is kept once a call has ended."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, asyncio.Task[T]] = {}

    async def run(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the call that runs for `key` gives or raises; `call` is made if none does. Whoever
        is cancelled leaves the others' call alone."""
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(call())
            self._flights[key] = flight
            flight.add_done_callback(lambda ended: self._land(key, ended))
        return await asyncio.shield(flight)

    def _land(self, key: Hashable, ended: asyncio.Task[T]) -> None:
        del self._flights[key]
        if not ended.cancelled():
            ended.exception()  # if nobody waited to the end, nobody else asks for it
