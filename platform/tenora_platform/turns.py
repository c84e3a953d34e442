"""Work in threads, one piece of a tenant's at a time, so that many of one tenant's do not stand
before another's. It knows no domain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from tenora_platform.errors import RateLimitedError

T = TypeVar("T")


class Turns:
    """The turns of one process. `places`: pieces of work at once. `tenant_waiting_max`: of one
    tenant, before the next is refused as `too_many` (a code) `what`; None: no bound but that of its
    requests. `own_threads`: apart from what all else shares."""

    def __init__(
        self,
        places: int,
        *,
        tenant_waiting_max: int | None = None,
        what: str = "",
        too_many: str | None = None,
        own_threads: bool = True,
    ) -> None:
        self._places = asyncio.Semaphore(places)
        self._threads = ThreadPoolExecutor(places, "turns") if own_threads else None
        self._waiting_max = tenant_waiting_max
        self._what = what
        self._too_many = too_many
        self._lines: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    @asynccontextmanager
    async def turn(self, tenant_id: str) -> AsyncIterator[None]:
        """The tenant's turn, until the block ends. Raises RateLimitedError when too many of the
        tenant's wait already."""
        waiting = self._waiting.get(tenant_id, 0)
        if self._waiting_max is not None and waiting >= self._waiting_max:
            raise RateLimitedError(
                f"This tenant already has {waiting} {self._what} (the maximum). Wait for some of "
                "them, then send this one again.",
                retry_after_ms=1000,
                code=self._too_many,
            )
        self._waiting[tenant_id] = waiting + 1
        line = self._lines.setdefault(tenant_id, asyncio.Lock())
        try:
            async with line:
                yield
        finally:
            self._waiting[tenant_id] -= 1
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id], self._lines[tenant_id]

    async def work(self, work: Callable[[], T]) -> T:
        """What `work` makes, in a thread, within the tenant's turn. The place is free again when
        the work has ended, also if nobody waits for it any more."""
        async with self._places:
            working = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(working)
            finally:
                if not working.done():
                    await asyncio.wait([working])

    async def run(self, tenant_id: str, work: Callable[[], T]) -> T:
        """What `work` makes, in the tenant's turn. Raises RateLimitedError, and what it raises."""
        async with self.turn(tenant_id):
            return await self.work(work)
