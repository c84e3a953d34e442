"""Whether the servers behind requests do what requests need of them, a write included: asked for
whoever asks about readiness, at most so often, and given up rather than waited for. It knows when
to ask, not what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from obstore.exceptions import BaseError
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.db import ReadOnlyError
from tenora_platform.outages import Trouble, first_line, trouble_of

ANSWER_S = 3.0
"""A probe is asked every few seconds, and says within five that a server says nothing."""
AGAIN_S = 0.2
"""For which the last answer holds where it was a bad one."""
_END_S = 0.5
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong with a server. `words` are its driver's, with addresses and paths: for the log,
    and for the operator."""

    trouble: Trouble
    words: str


class Probe:
    """`ask` raises its driver's error. Its answer holds for `every_s` and is everybody's who asks
    meanwhile. One that hangs is left to end by its client's own bounds, and is the only one: who
    asks while it does is told so at once."""

    def __init__(
        self, server: str, ask: Callable[[], Awaitable[object]], *, every_s: float
    ) -> None:
        self.server = server
        self._ask = ask
        self._every_s = every_s
        self._asking: asyncio.Task[None] | None = None
        self._began_s = 0.0
        self._holds_until_s = 0.0
        self._found: Found | None = None

    async def found(self) -> Found | None:
        """None: it works."""
        if self._asking is None and time.monotonic() < self._holds_until_s:
            return self._found
        if self._asking is None:
            self._began_s = time.monotonic()
            self._asking = asyncio.create_task(self._look(), name=f"probe-{self.server}")
        asking = self._asking
        left_s = max(0.0, self._began_s + ANSWER_S - time.monotonic())
        await asyncio.wait((asking,), timeout=left_s)
        if not asking.done():
            self._note(Found("timeout", f"no answer within {ANSWER_S:g} s"))
        return self._found

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,), timeout=_END_S)

    async def _look(self) -> None:
        found = None
        try:
            await self._ask()
        except (SQLAlchemyError, RedisError, BaseError, ReadOnlyError, OSError) as error:
            found = Found(trouble_of(error), first_line(error))
        finally:
            self._asking = None
        self._note(found)
        self._holds_until_s = time.monotonic() + (self._every_s if found is None else AGAIN_S)

    def _note(self, found: Found | None) -> None:
        if found is not None and found != self._found:
            _log.warning(
                "server cannot be used",
                server=self.server,
                trouble=found.trouble,
                reason=found.words,
            )
        elif found is None and self._found is not None:
            _log.info("server can be used again", server=self.server)
        self._found = found


@dataclass(frozen=True, slots=True)
class Probes:
    """Of one process."""

    database: Probe
    redis: Probe
    objects: Probe

    async def close(self) -> None:
        await asyncio.gather(self.database.close(), self.redis.close(), self.objects.close())
