"""One listener's connection: what waits to be sent to it, and when. It knows neither Redis nor who
may listen; `hub` fills it, and a route sends what it gives."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable

from tenora_platform.errors import ApiError
from tenora_platform.live import wire
from tenora_platform.live.topics import BUSY
from tenora_platform.operators.roles import Role
from tenora_platform.outages import outage_of

WAITING_MAX = 64
"""Events that wait to be sent; a reader that is slower is dropped."""
SOON_S = 0.3
"""Changes are gathered for so long, those of busy topics for BUSY_S."""
BUSY_S = 5.0
CHECK_S = 3.0
"""How soon a connection notices that its key was revoked or its session has ended."""


class Stream:
    """`tenant_id` is whose changes it is told of (None: of all, as the operator with `role`);
    `who` the key or person; `check` raises ApiError once they may not listen any more."""

    def __init__(
        self,
        tenant_id: str | None,
        role: Role | None,
        who: str,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self.tenant_id = tenant_id
        self.role = role
        self.who = who
        self._check = check
        self._waiting: deque[bytes] = deque()
        self._topics: set[str] = set()
        self._due_s = 0.0  # when the topics are to be sent
        self._end: tuple[str, str] | None = None
        self._woken = asyncio.Event()

    def change(self, topics: frozenset[str]) -> None:
        """They are told of soon, once."""
        new = topics - self._topics
        if not new:
            return
        due_s = time.monotonic() + (BUSY_S if new <= BUSY else SOON_S)
        self._due_s = min(self._due_s, due_s) if self._topics else due_s
        self._topics |= new
        self._woken.set()

    def send(self, event: bytes) -> None:
        """In its turn. One that reads too slowly is ended."""
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.clear()
            self.end(
                "too_slow", "This connection is too slow to receive its events; connect again."
            )
            return
        self._waiting.append(event)
        self._woken.set()

    def end(self, code: str, message: str) -> None:
        """With these words; the first that are said count."""
        self._end = self._end or (code, message)
        self._woken.set()

    async def events(self, lasts_s: float | None, missed: frozenset[str]) -> AsyncGenerator[bytes]:
        """For ever, or for `lasts_s`; `missed` are topics that may have changed before it came."""
        yield wire.hello()
        if missed:
            yield wire.change(set(missed))
        begun_s = said_s = checked_s = time.monotonic()
        while self._end is None:
            for event in self._taken():
                said_s = time.monotonic()
                yield event
            now_s = time.monotonic()
            if lasts_s is not None and now_s - begun_s >= lasts_s:
                return
            if now_s - said_s >= wire.PING_S:
                said_s = now_s
                yield wire.ping()
            if now_s - checked_s >= CHECK_S:
                checked_s = now_s
                await self._look()
            until_s = min(said_s + wire.PING_S, checked_s + CHECK_S)
            if self._topics:
                until_s = min(until_s, self._due_s)
            if lasts_s is not None:
                until_s = min(until_s, begun_s + lasts_s)
            await self._wait(until_s - time.monotonic())
        yield wire.end(*self._end)

    def _taken(self) -> list[bytes]:
        """What is to be sent now."""
        self._woken.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        if self._topics and self._due_s <= time.monotonic():
            taken.append(wire.change(self._topics))
            self._topics = set()
        return taken

    async def _look(self) -> None:
        try:
            await self._check()
        except ApiError as error:
            if error.status in (401, 403):
                self.end(error.code or "signed_out", error.message)
        except Exception as error:
            if outage_of(error) is None:
                raise

    async def _wait(self, most_s: float) -> None:
        if self._end is not None or self._waiting or most_s <= 0:
            return
        try:
            async with asyncio.timeout(most_s):
                await self._woken.wait()
        except TimeoutError:
            return
