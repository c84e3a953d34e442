"""Presence: each process says in Redis every second that it lives and how it fares, and reads what
the others say. Knows neither what they do nor who holds them up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_engine.sealing import Seal
from tenora_platform.reconciliation.told import Told
from tenora_platform.registry.store_told import StoreTold

SAID_S = 1.0
KEPT_S = 5.0
"""Who has said nothing for so long is not there any more."""

Role = Literal["supervisor", "engine", "api", "worker", "all"]
"""`all` is an API process that does a worker's work too, as tests have it."""

_BELIEVED_S = 3600.0  # whoever says it again later is another; hosts' clocks may differ
_SEALED = "process"
_MISSED_S = 10.0
_KEY = "tenora:processes"  # hash: id -> when it was said, in milliseconds of Redis' clock, and what
_log = structlog.get_logger(__name__)

# ARGV: id ('': only read), record, kept milliseconds. Returns ids and records of who is there.
_SAY = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now) .. ARGV[2])
  redis.call('EXPIRE', KEYS[1], 3600)
end
local there, all = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local said, record = string.match(all[i + 1], '^(%d+) (.*)$')
  local age_ms = said and now - said
  if age_ms and age_ms <= tonumber(ARGV[3]) and age_ms >= -tonumber(ARGV[3]) then
    table.insert(there, all[i])
    table.insert(there, record)
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return there
"""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself. `outages`: work that fails, and why. `restarts`, of a
    supervisor: its parts by name, how often each died and was started again. `unbilled`, of a
    worker: usage events without a price and dead letters in the whole database; `proof`, what the
    books' last reconciliation and the canary found; `store`, whether the object store is the
    database's."""

    id: str
    role: Role
    name: str
    host: str
    pid: int
    started: datetime
    version: str
    outages: dict[str, str] = {}
    restarts: dict[str, int] = {}
    unbilled: tuple[int, int] | None = None
    proof: Told | None = None
    store: StoreTold | None = None


def this_process(role: Role, name: str | None = None, pid: int | None = None) -> Process:
    """Of this process, or of a child that says nothing itself."""
    return Process(
        id=secrets.token_hex(8),
        role=role,
        name=name or role,
        host=socket.gethostname(),
        pid=os.getpid() if pid is None else pid,
        started=datetime.now(UTC),
        version=version("tenora"),
    )


class Presence:
    """`said` gives the records of which this process speaks, anew each second. `others` is who was
    there when it last asked, itself included; None before. What was known last stays known:
    `unbilled`, `proof` and `store` as a worker said it, `api_processes` as they were counted (0:
    never)."""

    def __init__(self, redis: Redis, seal: Seal, said: Callable[[], Sequence[Process]]) -> None:
        self._redis = redis
        self._seal = seal
        self._said = said
        self.others: list[Process] | None = None
        self.unbilled: tuple[int, int] | None = None
        self.proof: Told | None = None
        self.store: StoreTold | None = None
        self.api_processes = 0
        self._worker_seen_s = time.monotonic()

    @property
    def workers_missing(self) -> bool:
        """Whether there has been no worker for longer than one takes to start."""
        return self.others is not None and time.monotonic() - self._worker_seen_s > _MISSED_S

    async def keep(self) -> None:
        """For ever. While Redis is away nobody is known, and nobody is missed."""
        try:
            while True:
                await self._once()
                await asyncio.sleep(SAID_S)
        finally:
            with contextlib.suppress(RedisError, OSError, asyncio.CancelledError):
                await self._redis.hdel(_KEY, *(each.id for each in self._said()))

    async def read(self) -> list[Process]:
        """Who is there now. Raises RedisError."""
        return self._processes(await self._run("", b""))

    async def _once(self) -> None:
        try:
            for record in self._said():
                raw = self._seal.close(_SEALED, record.id, msgspec.json.encode(record), _BELIEVED_S)
                self._note(self._processes(await self._run(record.id, raw)))
        except RedisError as error:
            if self.others is not None:
                _log.warning("process could not be announced in Redis", reason=str(error))
            self.others = None

    def _note(self, others: list[Process]) -> None:
        self.others = others
        self.api_processes = sum(each.role in ("api", "all") for each in others)
        for each in others:
            if each.role in ("worker", "all"):
                self._worker_seen_s = time.monotonic()
            if each.unbilled is not None:
                self.unbilled = each.unbilled
            if each.proof is not None:
                self.proof = each.proof
            if each.store is not None:
                self.store = each.store

    async def _run(self, process_id: str, record: bytes) -> list[bytes]:
        kept_ms = str(int(KEPT_S * 1000))
        found: list[bytes] = await self._redis.eval(_SAY, 1, _KEY, process_id, record, kept_ms)
        return found

    def _processes(self, said: Sequence[bytes]) -> list[Process]:
        """Of ids and records in turn; without those that are not ours, or of another version."""
        found = []
        for process_id, record in zip(said[::2], said[1::2], strict=True):
            content = self._seal.open(_SEALED, process_id.decode(errors="replace"), record)
            if content is not None:
                with contextlib.suppress(msgspec.MsgspecError):
                    found.append(msgspec.json.decode(content, type=Process))
        return sorted(found, key=_order)


def _order(process: Process) -> tuple[Any, ...]:
    return process.role, process.host, process.name, process.started, process.pid
