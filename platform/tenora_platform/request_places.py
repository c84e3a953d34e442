"""Places of tenants for requests of management: of each only a few are worked on at once in one
process, so that its event loop and its database connections are left to the others. Knows no
route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field
from typing import TypeVar

from tenora_platform.errors import RateLimitedError

Piece = TypeVar("Piece")

PLACES = 4
"""Requests of one tenant in work at once. Of the sixteen connections that an API process has for
tenants, four tenants with as much as they can send leave none idle."""
WAITING_MAX = 64
"""More of it that wait, in the order in which they came."""


@dataclass
class _Line:
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PLACES))
    there: int = 0  # in work or waiting


class RequestPlaces:
    """Of one process. A tenant is forgotten with its last request."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def place(self, tenant_id: str) -> Place:
        """For one request; nothing is taken yet."""
        return Place(self._lines, tenant_id)

    def there(self, tenant_id: str) -> int:
        """How many requests of a tenant are in work or waiting."""
        line = self._lines.get(tenant_id)
        return 0 if line is None else line.there


class Place:
    """One request's; `leave` it in the end, whatever came of it."""

    def __init__(self, lines: dict[str, _Line], tenant_id: str) -> None:
        self._lines = lines
        self._tenant_id = tenant_id
        self._held: _Line | None = None

    async def enter(self, *, begun: bool = False) -> None:
        """Wait for the place. Raises RateLimitedError where too many wait already, unless the
        answer has begun."""
        assert self._held is None
        line = self._lines.setdefault(self._tenant_id, _Line())
        if line.there >= PLACES + WAITING_MAX and not begun:
            raise RateLimitedError(
                f"{PLACES} requests of this tenant are being served here and {WAITING_MAX} wait, "
                "which is the maximum. Wait for some of them, then send this one again.",
                retry_after_ms=1000,
                code="too_many_requests_at_once",
            )
        line.there += 1
        try:
            await line.places.acquire()
        except BaseException:
            self._gone(line)
            raise
        self._held = line

    def leave(self) -> None:
        """Give the place to the next, if it is held."""
        line, self._held = self._held, None
        if line is not None:
            line.places.release()
            self._gone(line)

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

    def _gone(self, line: _Line) -> None:
        line.there -= 1
        if not line.there:
            del self._lines[self._tenant_id]
