"""What is wrong after the kills, in words. Knows what clients were told and what the books say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tenora_bench.books import Books
from tenora_bench.kills.load import Load, count_errors
from tenora_bench.kills.platform import Part

BOUND_S = 15.0
SHOWN_S = 5.0
_EXCUSED = {"engine_unavailable", "database_unavailable", "limits_unavailable", "request_aborted"}
_BROKEN_OFF = {"ClientOSError", "ClientPayloadError", "ServerDisconnectedError", "cut off"}
"""What a client sees of an API process that is killed. A connection that is refused is no excuse:
the port is not the process's."""


@dataclass(frozen=True)
class Event:
    """One process was killed, or stopped for a while and told to go on."""

    part: Part
    how: str  # "kill" or "stop"
    back_s: float  # from the kill, or from its going on, until all is served
    engine_was: int | None
    engine_is: int | None


@dataclass
class Found:
    """Beside the requests and the books."""

    events: list[Event] = field(default_factory=list)
    held: dict[str, Any] = field(default_factory=dict)  # tenant -> what is held a lease later
    shown_s: float | None = None  # after which /readyz told of a stopped engine
    processes_left: list[str] = field(default_factory=list)
    bound_s: float = BOUND_S


def verdict(load: Load, books: Books, found: Found) -> list[str]:
    """Empty when nothing was lost, doubled, slow, held or left behind."""
    return [
        *_of_events(found),
        *_of_requests(load, books),
        *_of_errors(load, found.events),
        *books.faults(),
        *(f"{tenant} still holds {held}" for tenant, held in found.held.items()),
        *(f"still runs: {process}" for process in found.processes_left),
    ]


def _of_events(found: Found) -> list[str]:
    faults = [
        f"{event.part} was back {event.back_s:.1f} s after a {event.how}"
        for event in found.events
        if event.back_s > found.bound_s
    ]
    faults += [
        f"a {event.how} of {event.part} cost the engine its process"
        for event in found.events
        if event.part != "engine" and event.engine_was != event.engine_is
    ]
    if found.shown_s is not None and found.shown_s > SHOWN_S:
        faults.append(f"a stopped engine showed after {found.shown_s:.1f} s")
    return faults


def _of_requests(load: Load, books: Books) -> list[str]:
    faults = []
    for outcome in load.answered:
        assert outcome.usage is not None
        rows = books.events.get(outcome.id or "", [])
        wanted = [(outcome.usage["prompt_tokens"], outcome.usage["completion_tokens"])]
        if rows != wanted:
            faults.append(f"{outcome.id} was answered with {wanted} and stored as {rows}")
    answered = {outcome.id for outcome in load.answered}
    broken_off = {outcome.id for outcome in load.failed if outcome.id}
    others = [key for key in books.events if key not in answered and key not in broken_off]
    nameless = sum(outcome.id is None for outcome in load.failed)
    if len(others) > nameless:
        faults.append(f"{len(others)} events belong to none of our requests: {others[:5]}")
    return faults + [
        f"{key} has {len(rows)} events" for key, rows in books.events.items() if rows[1:]
    ]


def _of_errors(load: Load, events: list[Event]) -> list[str]:
    excused = {f"503 {code}" for code in _EXCUSED}
    if any(event.part.startswith("api") for event in events):
        excused |= _BROKEN_OFF
    unexcused = sorted(set(count_errors(load.failed)) - excused)
    return [f"requests ended with {error}" for error in unexcused]
