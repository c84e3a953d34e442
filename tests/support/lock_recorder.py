"""Writes down in which order transactions take locks, by what the locks guard: advisory ones by
their names, rows by their tables. It sees what SQLAlchemy sends, not what a trigger does."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, event

from tenora_platform.db import Database

_ROWS = re.compile(r"\bFOR (?:UPDATE|NO KEY UPDATE|SHARE)\b")
_FROM = re.compile(r"\bFROM (\w+)")
_OF = re.compile(r"\bFOR (?:UPDATE|NO KEY UPDATE|SHARE) OF (\w+)")
_CHANGES = re.compile(r"^\s*(?:UPDATE|DELETE FROM) (\w+)")
_ID = re.compile(r"[a-z]+_[0-9a-z]{26}")


class LockOrder:
    """`after`: by lock, those that a transaction took before it, each with where that was seen."""

    def __init__(self) -> None:
        self.after: dict[str, dict[str, str]] = defaultdict(dict)
        self._held: dict[int, list[str]] = defaultdict(list)

    def took(self, connection: Connection, statement: str, parameters: Any) -> None:
        held = self._held[id(connection.connection.driver_connection)]
        for lock in _locks_of(statement, parameters):
            if lock in held:
                continue
            held.append(lock)
            for earlier in held[:-1]:
                self.after[lock].setdefault(earlier, " > ".join(held))

    def ended(self, connection: Connection) -> None:
        self._held.pop(id(connection.connection.driver_connection), None)

    def circle(self) -> list[str]:
        """Locks that wait for each other in a circle, with a transaction for each step; none if
        there is an order."""
        try:
            TopologicalSorter({of: set(earlier) for of, earlier in self.after.items()}).prepare()
        except CycleError as error:
            names: list[str] = error.args[1]
            return [
                f"{before} before {then}: {self.after[then][before]}"
                for before, then in pairwise(names)
            ]
        return []


def _locks_of(statement: str, parameters: Any) -> Iterator[str]:
    if "pg_advisory_xact_lock_shared" in statement and "names" in parameters:
        yield from {each.partition(":")[0]: None for each in parameters["names"]}
    elif "pg_advisory_xact_lock" in statement:
        name = _ID.sub("ID", str(parameters["name"]))
        yield name if name in ("audit:operator", "rights:operator") else name.partition(":")[0]
    elif _ROWS.search(statement):
        of = _OF.search(statement) or _FROM.search(statement)
        if of is not None:
            yield f"rows of {of[1]}"
    elif changed := _CHANGES.match(statement):
        yield f"rows of {changed[1]}"


@contextmanager
def recorded(db: Database) -> Iterator[LockOrder]:
    """All locks that sessions of this database take within the block."""
    order = LockOrder()

    def executes(connection: Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        order.took(connection, statement, parameters)

    listeners: list[tuple[str, Callable[..., None]]] = [
        ("before_cursor_execute", executes),
        ("commit", order.ended),
        ("rollback", order.ended),
    ]
    engines = [db._app.sync_engine, db._admin.sync_engine]
    for engine in engines:
        for name, listener in listeners:
            event.listen(engine, name, listener)
    try:
        yield order
    finally:
        for engine in engines:
            for name, listener in listeners:
                event.remove(engine, name, listener)
