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
    """What is looked at. `recent`: days that are not over, or whose sums have moved since they were
    found right; `full`: every event. Days are UTC and inclusive."""

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
    """How many rows of each layer were compared. `days` are tenants' days, of which `days_kept`
    stood as they were when they were found right."""

    events: int = 0
    archived_events: int = 0
    occupancy_events: int = 0
    hour_rows: int = 0
    day_rows: int = 0
    ledger_amounts: int = 0
    invoices: int = 0
    engine_days: int = 0
    days: int = 0
    days_kept: int = 0


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """On its way from one layer to the next, and no difference yet."""

    unrated_events: int = 0
    dead_letters: int = 0
    ledger_days: int = 0
    engine_sequences: int = 0


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's day that was found right, to be kept."""

    tenant_no: int
    day: date
    digest: bytes


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`at` is the moment of the books that was looked at. `differences` counts each kind."""

    at: datetime
    took_s: float
    looked: Looked
    waiting: Waiting
    differences: dict[str, int]
    named: list[Difference]
    settled: list[Settled] = []
    wrong: list[tuple[int, date]] = []  # tenant number and day

    @property
    def total(self) -> int:
        return sum(self.differences.values())
