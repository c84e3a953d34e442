"""What a reconciliation is asked to do and what it answers, as they cross to the process that does
it and back, and as the answer is kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

import msgspec

from tenora_platform.reconciliation.differences import Difference

Mode = Literal["recent", "full"]


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at. `recent`: usage of the days since the last run that settled days, and of
    older ones that are marked as moved; `full`: every event, and what is no usage (accounts, price
    lists, credit, invoices, the ledger's chains). Days are UTC and inclusive."""

    mode: Mode = "full"
    tenant_id: str | None = None
    first: date | None = None
    last: date | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Holds secrets: for a pipe, never for a file or a command line."""

    database_url: str  # as the operator's role
    secret: bytes
    object_store: str
    scope: Scope = Scope()


@dataclass(frozen=True, kw_only=True)
class Looked:
    """How many rows of each layer were compared. `days` are tenants' days."""

    events: int = 0
    archived_events: int = 0
    occupancy_events: int = 0
    hour_rows: int = 0
    day_rows: int = 0
    ledger_amounts: int = 0
    invoices: int = 0
    engine_days: int = 0
    days: int = 0


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """On its way from one layer to the next, and no difference yet."""

    unrated_events: int = 0
    dead_letters: int = 0
    ledger_days: int = 0
    engine_sequences: int = 0


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What needs no look any more: every day up to `through` (None: not every tenant's were looked
    at), but those of `wrong`, by tenant. `marks` were seen and can go."""

    through: date | None = None
    marks: list[int] = []
    wrong: list[tuple[str, date]] = []


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`at` is the moment of the books that was looked at. `differences` counts each kind."""

    at: datetime
    took_s: float
    looked: Looked
    waiting: Waiting
    differences: dict[str, int]
    named: list[Difference]
    settled: Settled = Settled()

    @property
    def total(self) -> int:
        return sum(self.differences.values())
