"""Whether who sent a request may still do what they asked for, at the moment it is written. Every
transaction of a changing request asks before it first writes or locks a row, under a lock that who
takes rights away holds alone. It knows no keys and no people: an Asker brings its own question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import ORMExecuteState, Session

from tenora_platform.locks import hold_shared, lock

OPERATOR = "operator"
_ASKER, _ASKED = "asker", "asked"  # in `info` of a session


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Who a request asks as. `place` is where their rights are: a tenant's id, or OPERATOR."""

    place: str
    require: Callable[[Connection], None]
    """Raises UnauthorizedError or ForbiddenError once the right is gone."""
    task: asyncio.Task[object] | None = field(default_factory=asyncio.current_task)
    """What a request only sets going, for itself or for others, is not its own."""


_current: ContextVar[Asker | None] = ContextVar("asker", default=None)


@contextmanager
def asking(asker: Asker | None) -> Iterator[None]:
    """Within the block this task writes for `asker`; None: for nobody who could lose a right."""
    token = _current.set(asker)
    try:
        yield
    finally:
        _current.reset(token)


def watch(session: AsyncSession) -> None:
    """A new session asks whoever it is opened for, in each of its transactions."""
    asker = _current.get()
    if asker is None or asker.task is not asyncio.current_task():
        return
    within = session.sync_session
    within.info[_ASKER] = asker
    event.listen(within, "after_begin", _begun)
    event.listen(within, "before_flush", _flushes)
    event.listen(within, "do_orm_execute", _executes)


def asks(session: Session) -> bool:
    """Whether the session works for somebody who asks for a change."""
    return _ASKER in session.info


async def take(session: AsyncSession, place: str) -> None:
    """Before rights at this place are taken away: whoever has them either has written, so that it
    is seen from here on, or will be refused. First in its transaction; of two places the operator's
    is the first, and tenants' are in the order of their ids."""
    asker: Asker | None = session.info.get(_ASKER)
    if asker is not None and asker.place != place:
        await ask(session)
    await lock(session, _name(place))
    await ask(session)


async def ask(session: AsyncSession) -> None:
    """Before a lock that who takes rights away needs as well."""
    await session.run_sync(_ask)


def _name(place: str) -> str:
    return f"rights:{place}"


def _ask(session: Session) -> None:
    asker: Asker | None = session.info.get(_ASKER)
    if asker is None or session.info.get(_ASKED):
        return
    session.info[_ASKED] = True
    connection = session.connection()
    hold_shared(connection, _name(asker.place))
    asker.require(connection)


def _begun(session: Session, _: object, __: object) -> None:
    session.info.pop(_ASKED, None)


def _flushes(session: Session, _: object, __: object) -> None:
    _ask(session)


def _executes(state: ORMExecuteState) -> None:
    statement = state.statement
    locks_rows = getattr(statement, "_for_update_arg", None) is not None
    if state.is_insert or state.is_update or state.is_delete or locks_rows:
        _ask(state.session)
