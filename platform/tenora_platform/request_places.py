"""Places of tenants for requests of management: of each, and of all together, only a few are worked
on at once in one process, so that its event loop and its database connections are left to the
others and to inference. Knows no route."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field
from typing import TypeVar

from tenora_platform.errors import RateLimitedError

Piece = TypeVar("Piece")

PLACES = 4
"""Requests of one tenant in work at once."""
WAITING_MAX = 64
"""More of it that wait, in the order in which they came."""
AT_ONCE = 12
"""Of all tenants, where nothing else is said."""


def places_of(connections: int) -> int:
    """How many requests of management may be in work at once where tenants have so many connections
    in a process: a quarter of them is left to inference and to who is let in."""
    return max(1, connections * 3 // 4)


@dataclass
class _Line:
    held: int = 0  # places of it in which there is work
    there: int = 0  # in work or waiting
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class RequestPlaces:
    """Of one process. A place that is free goes to the tenant with the least work in hand, so that
    however many requests wait, who has none in work waits behind others who have none alone. A
    tenant is forgotten with its last request."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = at_once
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def place(self, tenant_id: str) -> Place:
        """For one request; nothing is taken yet."""
        return Place(self, tenant_id)

    def there(self, tenant_id: str) -> int:
        """How many requests of a tenant are in work or waiting."""
        line = self._lines.get(tenant_id)
        return 0 if line is None else line.there

    async def _enter(self, tenant_id: str, *, begun: bool) -> None:
        line = self._lines.setdefault(tenant_id, _Line())
        if line.there >= PLACES + WAITING_MAX and not begun:
            raise RateLimitedError(
                f"{PLACES} requests of this tenant are being served here and {WAITING_MAX} wait, "
                "which is the maximum. Wait for some of them, then send this one again.",
                retry_after_ms=1000,
                code="too_many_requests_at_once",
            )
        line.there += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        self._give()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave(tenant_id)  # it was given a place, and is gone
            else:
                line.waiting.remove(turn)
                self._gone(tenant_id, line)
            raise

    def _leave(self, tenant_id: str) -> None:
        line = self._lines[tenant_id]
        line.held -= 1
        self._free += 1
        self._gone(tenant_id, line)
        self._give()

    def _give(self) -> None:
        """Give the places that are free to those who wait; of tenants with as much work in hand, to
        the one that has been given none for longest."""
        while self._free:
            waiting = [
                (line.held, tenant_id)
                for tenant_id, line in self._lines.items()
                if line.held < PLACES and not all(turn.done() for turn in line.waiting)
            ]
            if not waiting:
                return
            tenant_id = min(waiting, key=lambda each: each[0])[1]
            line = self._lines.pop(tenant_id)
            self._lines[tenant_id] = line  # behind the others
            turn = next(each for each in line.waiting if not each.done())
            line.waiting.remove(turn)
            line.held += 1
            self._free -= 1
            turn.set_result(None)

    def _gone(self, tenant_id: str, line: _Line) -> None:
        line.there -= 1
        if not line.there:
            del self._lines[tenant_id]


class Place:
    """One request's; `leave` it in the end, whatever came of it."""

    def __init__(self, places: RequestPlaces, tenant_id: str) -> None:
        self._places = places
        self._tenant_id = tenant_id
        self._is_held = False

    async def enter(self, *, begun: bool = False) -> None:
        """Wait for the place. Raises RateLimitedError where too many wait already, unless the
        answer has begun."""
        assert not self._is_held
        await self._places._enter(self._tenant_id, begun=begun)
        self._is_held = True

    def leave(self) -> None:
        """Give the place to the next, if it is held."""
        if self._is_held:
            self._is_held = False
            self._places._leave(self._tenant_id)

    async def pieces(self, of: AsyncIterable[Piece]) -> AsyncIterator[Piece]:
        """Each made in the place, which is free while the client takes it."""
        making = aiter(of)
        while True:
            await self.enter(begun=True)
            try:
                piece = await anext(making)
            except StopAsyncIteration:
                return
            finally:
                self.leave()
            yield piece
