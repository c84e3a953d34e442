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
from tenora_engine.sealing import Seal
from tenora_platform.db import Database, plain_reason
from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import OWN_FAULT
from tenora_platform.usage import repository
from tenora_platform.usage.engine_totals import add_recovered
from tenora_platform.usage.gate import UsageHeldError
from tenora_platform.usage.sink import UsageSink

STREAM = "tenora:usage:sealed"  # field "u": the records of one request, msgpack, sealed
STREAM_BEFORE = "tenora:usage:copies"  # of versions that did not seal them; nobody reads it
STREAM_MAX = 100_000
"""Requests whose copies Redis keeps, the newest ones: 90 MB at most, reached by a thousand
requests a second while none is stored for a hundred seconds."""

UNKEPT_MAX = 20_000
"""Requests whose copies wait in a process for Redis to come back, the newest ones: 17 MB."""

AGE_S = 60.0
"""So long the engine's own record has to reach the database."""

KEPT_S = 27 * 86400.0
"""What is older was put there again, by somebody else: partitions of usage are kept for at least a
whole month, so that a record that has been billed is still known."""

EVERY_S = 15.0
_SEALED = "usage"
_AT_ONCE = 200
_SHOWN_MAX = 20
_RETRY_S = 1.0
_BEFORE_KEPT_S = 86400
_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[UsageRecord]).decode


class UsageCopies:
    """Of one API process. `keep_on` must run beside it, for when Redis was away."""

    def __init__(self, redis: Redis, seal: Seal, metrics: Metrics) -> None:
        self._redis = redis
        self._seal = seal
        self._metrics = metrics
        self._unkept: deque[bytes] = deque()
        self._keeping: set[asyncio.Task[None]] = set()

    def keep(self, records: Sequence[UsageRecord]) -> asyncio.Task[None] | None:
        """Begin to keep what one request has used; done when Redis has it. What other commands the
        caller sends in this turn of the loop go with it, in one write. It comes to its end whether
        or not it is waited for."""
        if not records:
            return None
        copy = self._seal.close(_SEALED, "", _encode(records), KEPT_S)
        task = asyncio.create_task(self._keep(copy))
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
        self,
        redis: Redis,
        seal: Seal,
        db: Database,
        sink: UsageSink,
        metrics: Metrics,
        age_s: float = AGE_S,
    ) -> None:
        self._redis = redis
        self._seal = seal
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
                await self._redis.expire(STREAM_BEFORE, _BEFORE_KEPT_S)
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
        strange: list[_Entry] = []
        for entry in entries:
            content = self._seal.open(_SEALED, "", entry.copy)
            if content is None:
                strange.append(entry)
                continue
            try:
                records += _decode(content)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                await self._bury(entry, f"a copy of a usage record cannot be read: {error}")
        if strange:
            await self._park(strange)
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

    async def _park(self, entries: Sequence[_Entry]) -> None:
        """What nobody of ours has written, or so long ago that it was put there again: shown in one
        dead letter, which has no record that could ever be billed."""
        first, last = entries[0].id.decode(), entries[-1].id.decode()
        digests = [sha256(entry.copy).hexdigest() for entry in entries]
        event_id = f"copy:{sha256(''.join(digests).encode()).hexdigest()}"
        self._metrics.usage_copies.labels("not_ours").inc(len(entries))
        _log.error(
            "copies of usage records in Redis were not written by this installation; not billed",
            copies=len(entries),
            event_id=event_id,
            stream_ids=[first, last],
        )
        values = {
            "event_id": event_id,
            "record": {
                "copies": len(entries),
                "stream_ids": [first, last],
                "bytes": sum(len(entry.copy) for entry in entries),
                "sha256": digests[:_SHOWN_MAX],
            },
            "reason": "copies of usage records without this installation's seal, or older than "
            "27 days, were found in Redis: somebody else writes to it. They are not billed",
        }
        async with self._db.admin_session() as session:
            await repository.add_dead_letter(session, values)

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
