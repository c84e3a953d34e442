"""What a request has committed by the time it fails: whether it may simply be repeated, and whether
its client may believe that nothing was done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from fastapi import Request, Response
from psycopg.errors import DeadlockDetected
from sqlalchemy import TextClause, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import ORMExecuteState, Session

from tenora_platform.asking import asks
from tenora_platform.db import WatchedSession

ATTEMPTS = 4
_PAUSE_S = 0.1
_WROTE = "wrote"  # in `info` of a session
_STACK = "fastapi_function_astack"  # of a request's scope: what FastAPI ends before it answers


class Commits:
    """How many transactions that wrote something were committed within a block."""

    def __init__(self) -> None:
        self.count = 0


_counted: ContextVar[tuple[Commits, ...]] = ContextVar("commits", default=())


@contextmanager
def counting() -> Iterator[Commits]:
    """Count what a request's own task commits for its asker within the block; not what is noted
    beside it, such as when a key was last used."""
    commits = Commits()
    token = _counted.set((*_counted.get(), commits))
    try:
        yield commits
    finally:
        _counted.reset(token)


async def repeated(answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """`answer(request)`, again while it is the victim of a deadlock and has committed nothing. What
    it depends on ends with each attempt, as an exception ends it."""
    outer: AsyncExitStack = request.scope[_STACK]
    for left in reversed(range(ATTEMPTS)):
        with counting() as commits:
            try:
                async with AsyncExitStack() as stack:
                    request.scope[_STACK] = stack
                    found = await answer(request)
                    outer.push_async_exit(stack.pop_all())
                    return found
            except DBAPIError as error:
                if not left or commits.count or not isinstance(error.orig, DeadlockDetected):
                    raise
            finally:
                request.scope[_STACK] = outer
        await asyncio.sleep(random.uniform(0, _PAUSE_S))
    raise AssertionError


@event.listens_for(WatchedSession, "after_flush")
def _flushed(session: Session, _: Any) -> None:
    session.info[_WROTE] = True


@event.listens_for(WatchedSession, "do_orm_execute")
def _executed(state: ORMExecuteState) -> None:
    statement = state.statement
    text = statement.text.lstrip() if isinstance(statement, TextClause) else ""
    if not state.is_select and text[:6].lower() != "select":
        state.session.info[_WROTE] = True


@event.listens_for(WatchedSession, "after_commit")
def _committed(session: Session) -> None:
    if session.info.pop(_WROTE, False) and asks(session):
        for each in _counted.get():
            each.count += 1


@event.listens_for(WatchedSession, "after_rollback")
def _rolled_back(session: Session) -> None:
    session.info.pop(_WROTE, None)
