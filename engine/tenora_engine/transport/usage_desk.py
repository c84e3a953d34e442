"""UsageDesk: gives the outbox's records to whichever client asks, each to one at a time. Knows no
socket; lives on its server's thread."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from tenora_engine.errors import EngineUnavailableError
from tenora_engine.events import Metered
from tenora_engine.transport.outbox import GIVEN_MAX

LEASE_S = 30.0
"""For so long nobody else is given what a client has been given and has not acknowledged; a
database takes less to store it, and where it does not, it knows the record by its id."""

_log = logging.getLogger(__name__)


class Records(Protocol):
    """What the desk needs of a UsageKeeper."""

    def oldest(self, limit: int, without: Collection[str]) -> Future[list[Metered]]: ...

    def acknowledge(self, event_ids: Sequence[str]) -> Future[None]: ...


@dataclass
class _Lease:
    records: dict[str, Metered] = field(default_factory=dict)  # by event id
    until_s: float = 0.0


class UsageDesk:
    """What a client has been given is leased to it until someone acknowledges it, the client is
    dropped, or LEASE_S is over. A client that asks again is given its own once more, and what
    else there is, GIVEN_MAX in all; then its lease begins anew.

    `later` brings a call to the desk's thread; `answer` takes a client, its call and the records.
    """

    def __init__(
        self,
        records: Records,
        later: Callable[[Callable[[], None]], None],
        answer: Callable[[bytes, int, list[Metered]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._later = later
        self._answer = answer
        self._clock = clock
        self._calls: list[tuple[bytes, int]] = []
        self._leases: dict[bytes, _Lease] = {}
        self._asking = False
        self._more = False  # something has changed since the outbox was asked
        self._stored: set[str] = set()  # acknowledged since then

    def ask(self, client: bytes, call: int) -> None:
        """To be answered as soon as there is a record for this client."""
        self._calls.append((client, call))
        self.look()

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        """By whomever: what is stored is nobody's any more."""
        for lease in self._leases.values():
            for event_id in event_ids:
                lease.records.pop(event_id, None)
        self._forget_empty()
        if self._asking:
            self._stored.update(event_ids)
        self._records.acknowledge(event_ids)

    def drop(self, client: bytes) -> None:
        """The client is gone: what it held is for others."""
        self._calls = [call for call in self._calls if call[0] != client]
        if self._leases.pop(client, None) is not None:
            self.look()

    def end_leases(self) -> None:
        """Take back what has been held for too long."""
        now = self._clock()
        over = [client for client, lease in self._leases.items() if lease.until_s < now]
        for client in over:
            del self._leases[client]
        if over:
            self.look()

    def look(self) -> None:
        """There may be records for those who wait. One question to the outbox at a time, for what
        one client is given the next must not be."""
        self._more = True
        if self._asking or not self._calls:
            return
        self._asking, self._more = True, False
        leased = [event_id for lease in self._leases.values() for event_id in lease.records]
        with contextlib.suppress(EngineUnavailableError):  # it ends
            asked = self._records.oldest(GIVEN_MAX, frozenset(leased))
            asked.add_done_callback(lambda done: self._later(lambda: self._take(done)))

    def _take(self, done: Future[list[Metered]]) -> None:
        """The answer: what was nobody's when the outbox was asked, and has not been given since."""
        self._asking = False
        error = done.exception()
        if error is not None:
            _log.error("usage records cannot be read and are kept: %s", error)
            return
        found = done.result()
        there_may_be_more = self._more or len(found) == GIVEN_MAX
        free = [record for record in found if record.event_id not in self._stored]
        self._stored.clear()
        answers, waiting = [], []
        for client, call in self._calls:
            lease = self._leases.setdefault(client, _Lease())
            room = GIVEN_MAX - len(lease.records)
            lease.records |= {record.event_id: record for record in free[:room]}
            free = free[room:]
            lease.until_s = self._clock() + LEASE_S
            if lease.records:
                answers.append((client, call, list(lease.records.values())))
            else:
                waiting.append((client, call))
        self._calls = waiting
        self._forget_empty()
        for client, call, records in answers:
            self._answer(client, call, records)
        if there_may_be_more:
            self.look()

    def _forget_empty(self) -> None:
        self._leases = {client: lease for client, lease in self._leases.items() if lease.records}
