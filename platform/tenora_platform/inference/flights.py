"""Requests in flight in this process, and how they are ended from outside: one tenant's or one
key's, wherever it was suspended or revoked, and all of them when the server stops. Redis carries
the word between processes; each reads it once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_engine.sealing import Seal
from tenora_platform.auth import TenantContext
from tenora_platform.errors import ApiError, ForbiddenError, UnauthorizedError, server_stopping

POLL_S = 1.0
_ENDED = "tenora:ended"
"""Sorted set: "tenant:<id>", "key:<id>" or "secret:<prefix>", sealed, by Redis' own time."""
_SEALED = "ended"
_KEPT_S = 600  # a process that has not asked for so long has ended its streams for other reasons
_log = structlog.get_logger(__name__)

# ARGV: since (microseconds; below 0: so long ago), kept microseconds. Returns {now, members...}
_READ = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
local since = tonumber(ARGV[1])
if since <= 0 then since = now + since end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', since), '+inf')
return {string.format('%.0f', now), found}
"""
_WRITE = """
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], clock[1] * 1000000 + clock[2], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 0
"""


class Endable(Protocol):
    """Something that runs for a request."""

    async def end(self, error: ApiError) -> None:
        """Stop it; the client is told `error`, and what it has used is billed unless it is the
        platform that ends it."""


@dataclass(eq=False)
class Flight:
    tenant: TenantContext
    runs: tuple[Endable, ...]


class Flights:
    """`keep_watch` must run beside it."""

    def __init__(self, redis: Redis, seal: Seal) -> None:
        self._redis = redis
        self._seal = seal
        self._flying: set[Flight] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._unsaid: dict[str, None] = {}  # what Redis has not taken yet, in order
        self._stopping: ApiError | None = None
        self._began_s = time.monotonic() - POLL_S  # what a slow answer of Redis may take

    @asynccontextmanager
    async def flight(self, tenant: TenantContext, runs: tuple[Endable, ...]) -> AsyncIterator[None]:
        """The request is in flight for as long as the block runs. Raises UnavailableError when the
        server has begun to end all of them."""
        if self._stopping is not None:
            raise self._stopping
        flight = Flight(tenant, runs)
        self._flying.add(flight)
        try:
            yield
        finally:
            self._flying.discard(flight)

    async def tenant_suspended(self, tenant_id: str) -> None:
        await self._tell(f"tenant:{tenant_id}")

    async def key_revoked(self, key_id: str) -> None:
        await self._tell(f"key:{key_id}")

    async def person_removed(self, tenant_id: str, person_id: str) -> None:
        """They do not belong to this tenant any more."""
        await self._tell(f"person:{tenant_id}/{person_id}")

    async def secret_ended(self, prefix: str) -> None:
        """One of a key's two secrets, or the only one it had so far."""
        await self._tell(f"secret:{prefix}")

    def end_all(self) -> None:
        """The server stops: end what is in flight here, and let nothing new begin."""
        self._stopping = server_stopping()
        self._end(list(self._flying), self._stopping)

    async def keep_watch(self) -> None:
        """End what other processes were told of, for ever. While Redis is away it waits: what was
        to be said meanwhile is said, and read, when it is back."""
        last = ""
        while True:
            # At first as far back as requests may have begun here: Redis may have been away.
            since = last or f"{(self._began_s - time.monotonic()) * 1e6:.0f}"
            try:
                now, found = await self._redis.eval(_READ, 1, _ENDED, since, str(_KEPT_S * 10**6))
                for member in found:
                    said = self._seal.open(_SEALED, "", member)
                    if said is not None:
                        self._end_of(said.decode())
                last = now.decode()
                await self._say()
            except RedisError as error:
                _log.warning(
                    "revoked keys could not be read from Redis",
                    reason=str(error),
                    unsaid=len(self._unsaid),
                )
            await asyncio.sleep(POLL_S)

    async def _tell(self, said: str) -> None:
        """Here at once, elsewhere within POLL_S."""
        self._end_of(said)
        self._unsaid[said] = None
        try:
            await self._say()
        except RedisError as error:
            _log.error(
                "other processes could not be told yet that a key was revoked",
                ended=said,
                reason=str(error),
            )

    async def _say(self) -> None:
        for said in list(self._unsaid):
            member = self._seal.close(_SEALED, "", said.encode(), _KEPT_S)
            await self._redis.eval(_WRITE, 1, _ENDED, member, str(_KEPT_S))
            self._unsaid.pop(said, None)

    def _end_of(self, said: str) -> None:
        kind, _, of = said.partition(":")
        error: ApiError
        if kind == "tenant":
            error = ForbiddenError(
                "This tenant has been suspended. Ask the operator of this server.",
                code="tenant_suspended",
            )
            ended = [flight for flight in self._flying if flight.tenant.tenant_id == of]
        elif kind == "person":
            error = ForbiddenError(
                "You are no longer a member of this tenant.", code="not_a_member"
            )
            tenant_id, _, person_id = of.partition("/")
            whose = (tenant_id, person_id)
            ended = [f for f in self._flying if (f.tenant.tenant_id, f.tenant.key_id) == whose]
        elif kind == "secret":
            error = UnauthorizedError(
                "This API key has been rotated; use its new secret.", code="key_rotated"
            )
            ended = [flight for flight in self._flying if flight.tenant.key_prefix == of]
        else:
            error = UnauthorizedError(
                "This API key has been revoked; use another key.", code="key_revoked"
            )
            ended = [flight for flight in self._flying if flight.tenant.key_id == of]
        self._end(ended, error)

    def _end(self, flights: list[Flight], error: ApiError) -> None:
        for flight in flights:
            for run in flight.runs:
                task = asyncio.create_task(run.end(error))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
