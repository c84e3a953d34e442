"""Usage records and the clients who ask for them: each record is with one of them at a time, and
none is lost, whoever dies."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fake_step_engine import usage_record
from tenora_engine.events import Metered
from tenora_engine.transport import usage_desk
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.usage_desk import LEASE_S, UsageDesk

GIVEN_MAX = 3
CLIENTS = [b"a", b"b", b"c"]


@pytest.fixture(autouse=True, scope="module")
def few_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage_desk, "GIVEN_MAX", GIVEN_MAX)
        yield


class SlowRecords:
    """An outbox on a disk that works when it is told to, job after job."""

    def __init__(self, outbox: UsageOutbox, stored: set[str]) -> None:
        self.outbox = outbox
        self.jobs: deque[Callable[[], None]] = deque()
        self.stored = stored

    def oldest(self, limit: int, without: Collection[str]) -> Future[list[Metered]]:
        future: Future[list[Metered]] = Future()
        self.jobs.append(lambda: future.set_result(self.outbox.oldest(limit, without)))
        return future

    def acknowledge(self, event_ids: Sequence[str]) -> Future[None]:
        def write() -> None:
            self.outbox.acknowledge(event_ids)
            self.stored.update(event_ids)

        self.jobs.append(write)
        return Future()


class Clients(RuleBasedStateMachine):
    """Beside the desk, plainly: who has been given what and until when."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now = 0.0
        self.written: set[str] = set()
        self.stored: set[str] = set()  # acknowledged, and the disk knows
        self.begin()

    def begin(self) -> None:
        """An engine process, with what the one before left on the disk."""
        self.records = SlowRecords(UsageOutbox(self.folder, window=5), self.stored)
        self.handed: deque[Callable[[], None]] = deque()
        self.desk = UsageDesk(self.records, self.handed.append, self.answered, lambda: self.now)
        self.asks: dict[bytes, int] = {}
        self.held: dict[str, bytes] = {}
        self.until: dict[bytes, float] = {}
        self.given: set[str] = set()
        self.acknowledged: set[str] = set()

    def answered(self, client: bytes, call: int, records: list[Metered]) -> None:
        assert self.asks.pop(client) == call, "nobody is answered twice, or after its death"
        ids = [record.event_id for record in records]
        assert 0 < len(ids) == len(set(ids)) <= GIVEN_MAX
        assert set(ids) <= self.written - self.acknowledged - self.stored
        for event_id in ids:
            assert self.held.get(event_id, client) == client, "with one client at a time"
        own = {event_id for event_id, holder in self.held.items() if holder == client}
        assert own <= set(ids), "its own are given again"
        self.held |= dict.fromkeys(ids, client)
        self.until[client] = self.now + LEASE_S
        self.given.update(ids)

    @rule(count=st.integers(1, 4))
    def sequences_end(self, count: int) -> None:
        new = [usage_record(f"r{len(self.written) + n}") for n in range(count)]
        self.records.outbox.append(new)
        self.written.update(record.event_id for record in new)
        self.desk.look()

    @rule(client=st.sampled_from(CLIENTS))
    def ask(self, client: bytes) -> None:
        if client not in self.asks:
            self.asks[client] = len(self.written)
            self.desk.ask(client, len(self.written))

    @rule(data=st.data())
    @precondition(lambda self: self.given)
    def acknowledge(self, data: st.DataObject) -> None:
        """By who holds them, or after its lease's end by who has held them."""
        some = data.draw(st.lists(st.sampled_from(sorted(self.given)), unique=True))
        self.note_acknowledged(some)

    def note_acknowledged(self, some: list[str]) -> None:
        self.held = {e: holder for e, holder in self.held.items() if e not in some}
        self.acknowledged.update(some)
        self.desk.acknowledge(some)

    @rule(client=st.sampled_from(CLIENTS))
    def die(self, client: bytes) -> None:
        self.asks.pop(client, None)
        self.held = {e: holder for e, holder in self.held.items() if holder != client}
        self.desk.drop(client)

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        over = {client for client, until_s in self.until.items() if until_s < self.now}
        self.held = {e: holder for e, holder in self.held.items() if holder not in over}
        self.desk.end_leases()

    @rule(jobs=st.integers(1, 3))
    def the_disk_works(self, jobs: int) -> None:
        for _ in range(min(jobs, len(self.records.jobs))):
            self.records.jobs.popleft()()

    @rule()
    def the_desk_works(self) -> None:
        while self.handed:
            self.handed.popleft()()

    @rule()
    def all_work(self) -> None:
        """Nobody waits beside a record that is nobody's."""
        while self.records.jobs or self.handed:
            self.the_disk_works(1)
            self.the_desk_works()
        assert not (self.asks and self.written - self.stored - set(self.held))

    @rule()
    def the_engine_restarts(self) -> None:
        """What the disk had not begun is not done: acknowledgements are lost, records are not."""
        self.records.outbox.close()
        self.begin()

    @invariant()
    def leases_are_what_we_think(self) -> None:
        real = {e: c for c, lease in self.desk._leases.items() for e in lease.records}
        assert real == self.held

    def teardown(self) -> None:
        """All that nobody has stored is there for the last."""
        self.the_engine_restarts()
        before = set(self.stored)
        while self.written - self.stored:
            self.ask(b"last")
            self.all_work()
            self.note_acknowledged(sorted(self.held))
            self.all_work()
        assert before <= self.stored == self.written
        self.records.outbox.close()
        shutil.rmtree(self.folder)


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=150, stateful_step_count=40)


def test_what_was_acknowledged_while_the_outbox_was_asked_is_not_given() -> None:
    """By a client whose lease had ended, after the disk had been read for another."""
    records = SlowRecords(UsageOutbox(None), set())
    records.outbox.append([usage_record("late"), usage_record("other")])
    handed: deque[Callable[[], None]] = deque()
    given: list[tuple[bytes, list[str]]] = []
    now = 0.0
    desk = UsageDesk(
        records,
        handed.append,
        lambda client, call, found: given.append((client, [r.event_id for r in found])),
        lambda: now,
    )
    desk.ask(b"a", 1)
    records.jobs.popleft()()
    handed.popleft()()
    assert given == [(b"a", ["late:0", "other:0"])]
    now = LEASE_S + 1
    desk.end_leases()
    desk.ask(b"b", 1)
    records.jobs.popleft()()
    desk.acknowledge(["late:0"])
    handed.popleft()()
    assert given[1:] == [(b"b", ["other:0"])]
