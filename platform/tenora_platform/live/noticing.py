"""Notices what a transaction has changed and, once it is committed, tells which topics of which
tenant: by the tables that rows were written to, and by the audit log. Who listens it does not
know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import ORMExecuteState, Session

from tenora_platform.db import TENANT, TOLD, WatchedSession
from tenora_platform.live.topics import topics_of_action, topics_of_table

_NOTED = "changes"
Told = Callable[[str | None, Iterable[str]], None]
"""Of whose things (None: the operator alone is told) which topics have changed."""


def noticed(told: Told) -> Told:
    """What a Database is given: sessions notice nothing unless this module is there."""
    return told


def note(session: AsyncSession, topics: Iterable[str], tenant_ids: Iterable[str] = ()) -> None:
    """What is written past the mappings, by statements as text. The operator is always told."""
    for tenant_id in (None, *tenant_ids):
        _note(session.sync_session, topics, tenant_id)


def _note(session: Session, topics: Iterable[str], tenant_id: str | None) -> None:
    noted: dict[str | None, set[str]] = session.info.setdefault(_NOTED, {})
    noted.setdefault(tenant_id, set()).update(topics)


@event.listens_for(WatchedSession, "after_flush")
def _flushed(session: Session, _: object) -> None:
    dirty = (row for row in session.dirty if session.is_modified(row))
    for row in chain(session.new, dirty, session.deleted):
        table: str = row.__tablename__
        topics = topics_of_table(table)
        if table == "audit_logs":
            topics |= topics_of_action(row.action)
        if topics:
            _note(session, topics, getattr(row, "tenant_id", None) or session.info.get(TENANT))


@event.listens_for(WatchedSession, "do_orm_execute")
def _executed(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        statement: Any = state.statement
        topics = topics_of_table(getattr(statement.table, "name", ""))
        if topics:
            _note(state.session, topics, state.session.info.get(TENANT))


@event.listens_for(WatchedSession, "after_commit")
def _committed(session: Session) -> None:
    told: Told | None = session.info.get(TOLD)
    for tenant_id, topics in session.info.pop(_NOTED, {}).items():
        if told is not None:
            told(tenant_id, topics)


@event.listens_for(WatchedSession, "after_rollback")
def _rolled_back(session: Session) -> None:
    session.info.pop(_NOTED, None)
