"""Copies of the engine's usage records, as the API processes saw them at the end of a request: in
Redis until their events are in the database, so that an engine node that is lost takes no money
with it. Knows records, not what they cost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from tenora_engine.events import UsageRecord
from tenora_platform.db import Database, plain_reason
from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import OWN_FAULT
from tenora_platform.usage import repository
from tenora_platform.usage.engine_totals import add_recovered
from tenora_platform.usage.gate import UsageHeldError
from tenora_platform.usage.sink import UsageSink

STREAM = "tenora:usage:copies"  # field "u": the records of one request, msgpack
STREAM_MAX = 100_000
"""Requests whose copies Redis keeps, the newest ones: 90 MB at most, reached by a thousand
requests a second while none is stored for a hundred seconds."""

UNKEPT_MAX = 20_000
"""Requests whose copies wait in a process for Redis to come back, the newest ones: 17 MB."""

AGE_S = 60.0
"""So long the engine's own record has to reach the database."""

EVERY_S = 15.0
_AT_ONCE = 200
_RETRY_S = 1.0
_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[UsageRecord]).decode


class UsageCopies:
    """Of one API process. `keep_on` must run beside it, for when Redis was away."""

    def __init__(self, redis: Redis, metrics: Metrics) -> None:
        self._redis = redis
        self._metrics = metrics
        self._unkept: deque[bytes] = deque()
        self._keeping: set[asyncio.Task[None]] = set()

    def keep(self, records: Sequence[UsageRecord]) -> asyncio.Task[None] | None:
        """Begin to keep what one request has used; done when Redis has it. What other commands the
        caller sends in this turn of the loop go with it, in one write. It comes to its end whether
        or not it is waited for."""
        if not records:
            return None
        task = asyncio.create_task(self._keep(_encode(records)))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)
        return task

    async def _keep(self, copy: bytes) -> None:
        try:
            await self._add(copy)
        except RedisError:
            self._set_aside(copy)

    async def _add(self, copy: bytes) -> None:
        await self._redis.xadd(STREAM, {"u": copy}, maxlen=STREAM_MAX)

    def _set_aside(self, copy: bytes) -> None:
        """The oldest goes: its own record is the likeliest to be stored by now."""
        if len(self._unkept) >= UNKEPT_MAX:
            self._unkept.popleft()
            self._metrics.usage_copies.labels("dropped").inc()
        self._unkept.append(copy)

    async def keep_on(self) -> None:
        """For ever: give Redis what it did not take."""
        while True:
            await asyncio.sleep(_RETRY_S)
            try:
                while self._unkept:
                    await self._add(self._unkept[0])
                    self._unkept.popleft()
            except RedisError as error:
                waiting = len(self._unkept)
                _log.warning(
                    "copies of usage records are waiting", requests=waiting, reason=str(error)
                )


@dataclass(frozen=True)
class _Entry:
    id: bytes  # of the stream: milliseconds, dash, number
    copy: bytes


class CopyReader:
    """Of a worker; several do no harm to each other: an event is stored once."""

    def __init__(
        self, redis: Redis, db: Database, sink: UsageSink, metrics: Metrics, age_s: float = AGE_S
    ) -> None:
        self._redis = redis
        self._db = db
        self._sink = sink
        self._metrics = metrics
        self._age_s = age_s

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.run_once()
            except UsageHeldError:
                pass  # the copies wait, as the outbox does
            except (RedisError, SQLAlchemyError, OSError) as error:
                _log.warning(
                    "copies of usage records could not be compared", reason=plain_reason(error)
                )

    async def run_once(self) -> int:
        """Store what is older than `age_s` and has no event, and forget it; returns how many
        records were missing. Raises UsageHeldError."""
        await self._sink.check_gate()
        seconds, micros = await self._redis.time()
        until = f"{round((seconds - self._age_s) * 1000) + micros // 1000}"
        missing = 0
        while entries := await self._read(until):
            missing += await self._settle_all(entries)
            await self._redis.xdel(STREAM, *(entry.id for entry in entries))
        return missing

    async def _read(self, until: str) -> list[_Entry]:
        found: Any = await self._redis.xrange(STREAM, max=until, count=_AT_ONCE)
        return [_Entry(entry_id, fields.get(b"u", b"")) for entry_id, fields in found]

    async def _settle_all(self, entries: Sequence[_Entry]) -> int:
        try:
            return await self._settle(entries)
        except OWN_FAULT:
            # Something in one of them. One by one, so that it stops nothing else.
            missing = 0
            for entry in entries:
                try:
                    missing += await self._settle([entry])
                except OWN_FAULT as error:
                    await self._bury(entry, f"it could not be stored: {plain_reason(error)}")
            return missing

    async def _settle(self, entries: Sequence[_Entry]) -> int:
        records: list[UsageRecord] = []
        for entry in entries:
            try:
                records += _decode(entry.copy)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                await self._bury(entry, f"a copy of a usage record cannot be read: {error}")
        if not records:
            return 0
        await self._sink.check_gate(records)
        async with self._db.admin_session() as session:
            missing = await repository.without_event(session, records)
            if missing:
                await add_recovered(session, missing)
        if missing:
            _log.warning("usage stored from copies", records=len(missing))
            self._metrics.usage_copies.labels("stored").inc(len(missing))
            await self._sink.store(missing)
        return len(missing)

    async def _bury(self, entry: _Entry, reason: str) -> None:
        """Shown among the dead letters; the others go on."""
        event_id = f"copy:{sha256(entry.copy).hexdigest()}"
        _log.error(
            "a copy of a usage record is set aside as a dead letter",
            event_id=event_id,
            reason=reason,
        )
        values = {
            "event_id": event_id,
            "record": {"stream_id": entry.id.decode(), "bytes": len(entry.copy)},
            "raw": entry.copy,
            "reason": reason,
        }
        async with self._db.admin_session() as session:
            await repository.add_dead_letter(session, values)
