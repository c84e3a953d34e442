"""Notes which calls of the inference API were answered with an error, and stores them beside
requests. However many there are, a tenant takes only so many rows a minute: what is more is counted
together by kind. It lists nothing."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import case, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Scope

from tenora_platform.db import Database, plain_reason
from tenora_platform.edge import is_clients
from tenora_platform.errors import ApiError
from tenora_platform.history.answers import tenant_of
from tenora_platform.ids import first_id
from tenora_platform.live.noticing import note
from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import OWN_FAULT
from tenora_platform.rejections.tables import RejectedCallRow
from tenora_platform.rejections.wording import message_of, model_of, param_of, plain
from tenora_platform.tenants.repository import erased_among

EACH_PER_MINUTE = 60
"""Calls of a tenant that each process keeps one by one; those beyond are counted by kind."""
KINDS_PER_MINUTE = 40
"""Of a tenant; what is of more kinds is counted by status alone."""
WAITING_MAX = 20_000
"""Rows that wait for the database; what comes while it is full is counted as lost."""
PATH_MAX = 100
"""Characters of a path that is no route's."""
OTHERS = "More calls of this minute, of various kinds."
_MINUTE_S = 60
_AT_ONCE = 500
_EVERY_S = 1.0
_LAST_S = 5.0  # for what still waits when the process ends
_HUNG_UP = 499
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """What calls that are counted together have in common."""

    tenant_id: str
    api_key_id: str | None
    route: str
    status: int
    code: str | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A row to be."""

    id: str
    kind: Kind
    at: datetime
    message: str
    last_at: datetime | None = None
    calls: int = 1
    model: str | None = None
    request_id: str | None = None


class RejectedCalls:
    """One in each process that answers requests; `keep` must run beside them."""

    def __init__(self, db: Database, metrics: Metrics) -> None:
        self._db = db
        self._lost = metrics.rejected_calls_lost
        self._waiting: dict[str, Call] = {}
        self._minute_s = 0
        self._told: Counter[str] = Counter()  # by tenant, of this minute
        self._kinds: dict[str, dict[Kind, str]] = {}
        self._writing = asyncio.Lock()

    def note(self, scope: Scope, status: int) -> None:
        """An answer has ended. Never waits, never raises."""
        if status < 400 or status == _HUNG_UP or not is_clients(scope, status):
            return
        self._begin_minute(int(time.time()) // _MINUTE_S * _MINUTE_S)
        state = scope["state"]
        error = state.get("error") or ApiError("", status=status)
        kind = _kind(scope, status, error)
        self._told[kind.tenant_id] += 1
        if len(self._waiting) >= WAITING_MAX:
            self._lost.labels("full").inc()
        elif self._told[kind.tenant_id] > EACH_PER_MINUTE:
            self._add_alike(kind, error, state.get("asked"))
        else:
            asked = state.get("asked")
            call = Call(
                id=f"rej_{state['request_ulid']}",
                kind=kind,
                at=datetime.now(UTC),
                message=message_of(error, asked),
                model=model_of(asked),
                request_id=state["request_id"],
            )
            self._waiting[call.id] = call

    async def keep(self) -> None:
        """For ever; cancel it to stop."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.flush()
            except (SQLAlchemyError, OSError) as error:
                _log.warning("rejected calls wait", reason=plain_reason(error))

    async def finish(self) -> None:
        """Before the process ends."""
        try:
            async with asyncio.timeout(_LAST_S):
                await self.flush()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._lost.labels("stopping").inc(len(self._waiting))
            _log.warning(
                "rejected calls lost", calls=len(self._waiting), reason=plain_reason(error)
            )

    async def flush(self) -> None:
        """Store what waits. Raises what the database raises; then it waits on."""
        async with self._writing:
            while self._waiting:
                batch = list(self._waiting.values())[:_AT_ONCE]
                for each in batch:
                    del self._waiting[each.id]
                try:
                    await self._store_each(batch)
                except (SQLAlchemyError, OSError):
                    for each in batch:
                        self._waiting[each.id] = _together(each, self._waiting.get(each.id))
                    raise

    def _begin_minute(self, minute_s: int) -> None:
        if minute_s != self._minute_s:
            self._minute_s = minute_s
            self._told.clear()
            self._kinds.clear()

    def _add_alike(self, kind: Kind, error: ApiError, asked: Any) -> None:
        """The first call's message stands for all of its kind."""
        kinds = self._kinds.setdefault(kind.tenant_id, {})
        message = kinds.get(kind)
        if message is None and len(kinds) >= KINDS_PER_MINUTE:
            kind, message = Kind(kind.tenant_id, None, "", kind.status), OTHERS
        if message is None:
            message = kinds[kind] = message_of(error, asked)
        now = datetime.now(UTC)
        call = Call(_id_of(kind, self._minute_s), kind, now, message, last_at=now)
        self._waiting[call.id] = _together(call, self._waiting.get(call.id))

    async def _store_each(self, batch: list[Call]) -> None:
        """All of them, but for those which cannot be stored whatever is done."""
        try:
            await self._store(batch)
        except OWN_FAULT as error:
            if len(batch) > 1:
                for each in batch:
                    await self._store_each([each])
                return
            self._lost.labels("unstorable").inc()
            _log.error("rejected call given up", id=batch[0].id, exc_info=error)

    async def _store(self, batch: list[Call]) -> None:
        row = RejectedCallRow
        statement = insert(row)
        new = statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=[row.id],
            set_={
                # A single call that is stored a second time is still one.
                "calls": case((row.last_at.is_(None), row.calls), else_=row.calls + new.calls),
                "last_at": func.greatest(row.last_at, new.last_at),
            },
        )
        async with self._db.admin_session() as session:
            erased = await erased_among(session, (each.kind.tenant_id for each in batch))
            kept = [each for each in batch if each.kind.tenant_id not in erased]
            if not kept:
                return
            await session.execute(statement, [_values(each) for each in kept])
            note(session, ["rejections"], {each.kind.tenant_id for each in kept} - {""})


def _kind(scope: Scope, status: int, error: ApiError) -> Kind:
    tenant = tenant_of(scope)
    return Kind(
        tenant_id=(error.tenant_id or "") if tenant is None else tenant.tenant_id,
        api_key_id=None if tenant is None else tenant.key_id,
        route=f"{scope['method']} {_path_of(scope)}",
        status=status,
        code=error.code,
        param=param_of(error),
    )


def _path_of(scope: Scope) -> str:
    """The route's; what was asked for, where there is no such route."""
    route = scope.get("route")
    return plain(scope["path"], PATH_MAX) if route is None else route.path


def _id_of(kind: Kind, minute_s: int) -> str:
    """The same in every process, so that calls alike of one minute are one row."""
    mark = hashlib.sha256(repr(kind).encode()).hexdigest()[:16]
    return first_id("rej", datetime.fromtimestamp(minute_s, UTC))[:-16] + mark


def _together(call: Call, other: Call | None) -> Call:
    """Of one id."""
    if other is None or call.last_at is None or other.last_at is None:
        return call
    return replace(
        call,
        at=min(call.at, other.at),
        last_at=max(call.last_at, other.last_at),
        calls=call.calls + other.calls,
    )


def _values(call: Call) -> Mapping[str, Any]:
    kind = call.kind
    return {
        "id": call.id,
        "tenant_id": kind.tenant_id,
        "at": call.at,
        "last_at": call.last_at,
        "calls": call.calls,
        "route": kind.route,
        "status": kind.status,
        "code": kind.code,
        "param": kind.param,
        "message": call.message,
        "model": call.model,
        "api_key_id": kind.api_key_id,
        "request_id": call.request_id,
    }
