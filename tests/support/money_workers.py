"""Two workers of a history of money: processes that do each step at the same time, one of which is
now and then killed in the middle of it. A step that a worker did not end is done again."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from random import Random
from typing import Any

from money_histories import Who
from money_platform import MoneyPlatform
from money_prices_model import Event
from tenora_platform.audit.service import AuditLog
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.service import Ledger
from tenora_platform.secret import ServerSecret

KILLED = 0.3
"""The part of steps in which a worker is killed."""
_LONGEST_S = 0.06  # until it is: most steps take less
_ANSWER_S = 60.0
_CONTEXT = multiprocessing.get_context("forkserver")


class Worker:
    """One process, with connections of its own."""

    def __init__(self, context: ForkServerContext, url: str, secret: bytes) -> None:
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, url, secret), daemon=True)
        self._process.start()
        theirs.close()

    async def do(self, name: str, values: Sequence[Any]) -> bool:
        """Whether the step was ended; it was not where the worker is killed meanwhile. Raises
        AssertionError for what the step raised."""
        self._line.send((name, values))
        try:
            raised = await asyncio.wait_for(asyncio.to_thread(self._line.recv), _ANSWER_S)
        except (EOFError, ConnectionResetError):
            return False
        assert raised is None, raised
        return True

    def kill(self) -> None:
        self._process.kill()

    def join(self) -> None:
        self._process.join()
        self._line.close()


@dataclass
class WorkersMoney(MoneyPlatform):
    """The platform's side of a history whose books are kept by two workers."""

    url: str = ""
    random: Random = field(default_factory=lambda: Random(0))
    workers: list[Worker] = field(default_factory=list)
    killed: int = 0

    async def store(self, events: list[Event]) -> None:
        await self._by_both("store", events)

    async def work(self, who: Who, now: datetime) -> None:
        await self._by_both("work", who, now)

    async def run(self, who: Who | None, month: str, now: datetime) -> None:
        await self._by_both("run", who, month, now)

    async def _by_both(self, name: str, *values: Any) -> None:
        asked = [asyncio.create_task(each.do(name, values)) for each in self.workers]
        if self.random.random() >= KILLED:
            assert all(await asyncio.gather(*asked))
            return
        place = self.random.randrange(len(self.workers))
        await asyncio.sleep(self.random.uniform(0, _LONGEST_S))
        self.workers[place].kill()
        self.killed += sum(not ended for ended in await asyncio.gather(*asked))
        self.workers[place].join()
        self.workers[place] = self.new_worker()
        assert await self.workers[place].do(name, values)

    def new_worker(self) -> Worker:
        return Worker(_CONTEXT, self.url, self.db.secret.root)


@contextmanager
def two_workers(money: WorkersMoney) -> Iterator[None]:
    """While the block runs the platform has them."""
    _CONTEXT.set_forkserver_preload(["money_workers"])
    money.workers = [money.new_worker(), money.new_worker()]
    try:
        yield
    finally:
        for worker in money.workers:
            worker.kill()
            worker.join()


def _serve(line: Connection, url: str, secret: bytes) -> None:
    asyncio.run(_work(line, url, ServerSecret(secret)))


async def _work(line: Connection, url: str, secret: ServerSecret) -> None:
    db = Database(database_urls(url, secret, DEFAULT))
    money = MoneyPlatform(db, Ledger(secret), AuditLog(secret))
    while True:
        try:
            name, values = await asyncio.to_thread(line.recv)
        except EOFError:
            os._exit(0)
        try:
            await getattr(money, name)(*values)
        except Exception as error:
            line.send(f"{name}: {error!r}")
        else:
            line.send(None)
