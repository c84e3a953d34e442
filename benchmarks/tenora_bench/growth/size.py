"""How large the books of a measurement are, and how they are shared: every tenant has one share,
but the first, which has a hundred. Knows no database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGE = 100
"""Shares of the first tenant."""


@dataclass(frozen=True, slots=True)
class Size:
    tenants: int
    versions: int
    events: int

    @property
    def name(self) -> str:
        return f"{self.tenants:,}/{self.versions:,}/{self.events:,}"

    @property
    def shares(self) -> int:
        return self.tenants - 1 + LARGE

    def versions_of(self, number: int) -> int:
        """Return this tenant's part; all together have as many as there are, each at least one."""
        share = LARGE if number == 0 else 1
        first = 0 if number == 0 else LARGE + number - 1
        return max(self.upto(first + share) - self.upto(first), 1)

    def upto(self, shares: int) -> int:
        return self.versions * shares // self.shares


def size_of(text: str) -> Size:
    """Parse `tenants:versions:events`. Raises ValueError."""
    tenants, versions, events = map(int, text.split(":"))
    if tenants < 2 or versions < tenants or events < tenants:
        raise ValueError("at least two tenants, with a version and an event each")
    return Size(tenants, versions, events)


@dataclass(frozen=True, slots=True)
class Asker:
    """A tenant whose pages are measured."""

    id: str
    key: str


@dataclass(frozen=True, slots=True)
class Filled:
    """What filling took, and two of the tenants: one like any, and the large one."""

    figures: dict[str, Any]
    average: Asker
    large: Asker


Fill = Callable[[Path, Size], Filled]
"""Fills the database under a data directory that nothing runs on. Raises BenchError."""
