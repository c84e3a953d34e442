"""Looks names up in threads of its own that nobody has to wait for. A lookup cannot be broken off,
and whoever owns a name decides how long it takes: so one owner has only so many at a time, those
that were given up included, and hanging ones hold no place of anybody else's."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

OF_ONE, IN_ALL = 4, 128
"""Lookups of a tenant's names at a time, and of everybody's, in one process. A waiting thread costs
no more than its stack."""

Lookup = Callable[[str, int], Sequence[tuple[Any, ...]]]


def system_lookup(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """As the operating system is set up, its hosts file included."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class Resolver:
    """One of a process, used within one event loop."""

    def __init__(
        self, lookup: Lookup = system_lookup, *, of_one: int = OF_ONE, in_all: int = IN_ALL
    ) -> None:
        self._lookup = lookup
        self._of_one = of_one
        self._own: dict[str, asyncio.Semaphore] = {}
        self._users = Counter[str]()
        self._all = asyncio.Semaphore(in_all)

    async def addresses(self, owner: str, host: str, port: int) -> list[str]:
        """Those of the name. Raises OSError and UnicodeError as the system does."""
        own = self._own.setdefault(owner, asyncio.Semaphore(self._of_one))
        self._users[owner] += 1
        held: list[asyncio.Semaphore] = []
        try:
            for places in (own, self._all):
                await places.acquire()
                held.append(places)
            found = self._begun(owner, held, host, port)
        except BaseException:
            self._leave(owner, held)
            raise
        return [str(each[4][0]).partition("%")[0] for each in await found]

    def _begun(
        self, owner: str, held: list[asyncio.Semaphore], host: str, port: int
    ) -> asyncio.Future[Sequence[tuple[Any, ...]]]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[tuple[Any, ...]]] = loop.create_future()

        def done(addresses: Sequence[tuple[Any, ...]], error: Exception | None) -> None:
            self._leave(owner, held)
            if found.done():  # nobody waits for it any more
                return
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)

        def look() -> None:
            addresses: Sequence[tuple[Any, ...]] = ()
            failed: Exception | None = None
            try:
                addresses = self._lookup(host, port)
            except Exception as error:
                failed = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done, addresses, failed)

        # No pool: at its end, a process would wait for the threads of one.
        threading.Thread(target=look, name="lookup", daemon=True).start()
        return found

    def _leave(self, owner: str, held: list[asyncio.Semaphore]) -> None:
        for places in held:
            places.release()
        self._users[owner] -= 1
        if not self._users[owner]:
            del self._users[owner], self._own[owner]
