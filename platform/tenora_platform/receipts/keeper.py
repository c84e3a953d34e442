"""Writes the contents that tenants keep, beside requests: no answer waits for it. Contents are no
money: what a process that dies still held is lost, and so is what comes while too much waits."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

import structlog
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.db import Database, plain_reason
from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import OWN_FAULT
from tenora_platform.receipts.contents import Seal, Transcript
from tenora_platform.secret import ServerSecret

WAITING_BYTES_MAX = 64 * 1024**2
AT_ONCE = 64
_RETRY_S = 1.0
_LAST_S = 5.0  # for what still waits when the process ends
_log = structlog.get_logger(__name__)

# What the tenant has chosen by now decides, not what it had chosen when the request began: the
# setting's row is locked, so nothing is written behind the deletion of all.
_STORE = text(
    """
    insert into kept_contents (tenant_id, request_id, sealed, bytes, created_at, expires_at)
    select tenant_id, :request_id, :sealed, :bytes, now(),
           now() + keep_contents_days * interval '1 day'
      from tenant_settings
     where tenant_id = :tenant_id and keep_contents_days is not null
       for share
    on conflict do nothing
    """
)


@dataclass(frozen=True)
class _Kept:
    request_id: str
    transcript: Transcript
    bytes: int


class ContentsKeeper:
    """One in each process that answers requests; `run` must run beside them."""

    def __init__(self, db: Database, secret: ServerSecret, metrics: Metrics) -> None:
        self.seal = Seal(secret)
        self._db = db
        self._metrics = metrics
        self._waiting: deque[_Kept] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._writing = asyncio.Lock()

    def keep(self, request_id: str, transcript: Transcript) -> None:
        """A request has ended, however it did. Never waits, never raises."""
        size = transcript.bytes
        if self._bytes + size > WAITING_BYTES_MAX:
            self._metrics.contents_lost.labels("full").inc()
            _log.warning("contents not stored: too many are waiting", waiting_bytes=self._bytes)
            return
        self._waiting.append(_Kept(request_id, transcript, size))
        self._bytes += size
        self._filled.set()

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            await self._filled.wait()
            try:
                await self._store_waiting()
            except (SQLAlchemyError, OSError) as error:
                _log.warning(
                    "contents are stored later", reason=plain_reason(error), retry_s=_RETRY_S
                )
                await asyncio.sleep(_RETRY_S)

    async def finish(self) -> None:
        """Before the process ends."""
        try:
            async with asyncio.timeout(_LAST_S):
                await self._store_waiting()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._metrics.contents_lost.labels("stopping").inc(len(self._waiting))
            _log.warning("contents lost", requests=len(self._waiting), reason=plain_reason(error))

    async def _store_waiting(self) -> None:
        async with self._writing:
            while self._waiting:
                batch = [self._waiting[at] for at in range(min(AT_ONCE, len(self._waiting)))]
                for tenant_id in {each.transcript.tenant_id for each in batch}:
                    own = [each for each in batch if each.transcript.tenant_id == tenant_id]
                    await self._store_own(tenant_id, own)
                for each in batch:  # none sooner: a failure repeats them, which changes nothing
                    self._waiting.popleft()
                    self._bytes -= each.bytes
            self._filled.clear()

    async def _store_own(self, tenant_id: str, batch: list[_Kept]) -> None:
        """All of them, but for those which cannot be stored whatever is done."""
        try:
            await self._store(tenant_id, batch)
        except OWN_FAULT as error:
            if len(batch) > 1:
                for each in batch:
                    await self._store_own(tenant_id, [each])
                return
            self._metrics.contents_lost.labels("unstorable").inc()
            _log.error("contents given up", request=batch[0].request_id, exc_info=error)

    async def _store(self, tenant_id: str, batch: list[_Kept]) -> None:
        rows = await asyncio.to_thread(self._sealed, tenant_id, batch)
        async with self._db.tenant_session(tenant_id) as session:
            await session.execute(_STORE, rows)

    def _sealed(self, tenant_id: str, batch: list[_Kept]) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for each in batch:
            made = self.seal.close(tenant_id, each.request_id, each.transcript.contents())
            rows.append(
                {
                    "tenant_id": tenant_id,
                    "request_id": each.request_id,
                    "sealed": made.sealed,
                    "bytes": made.bytes,
                }
            )
        return rows
