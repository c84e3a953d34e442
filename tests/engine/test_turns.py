"""How jobs of many tenants share threads and cores: by turns, whatever hangs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.adapters import turns
from tenora_engine.adapters.turns import Cores, FairThreads, Queues, Room, Rooms, SharedWork
from tenora_engine.pace import QUICK_BYTES, Pace


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_a_key_waits_for_no_more_than_one_item_of_each_other(steps: list[tuple[str, bool]]) -> None:
    queues: Queues[tuple[str, int]] = Queues()
    waiting: dict[str, list[tuple[str, int]]] = defaultdict(list)
    passed: dict[str, dict[str, int]] = {}  # by key that waits, the others' items since its last
    for number, (key, pushes) in enumerate(steps):
        if pushes:
            queues.push(key, (key, number))
            waiting[key].append((key, number))
            passed.setdefault(key, defaultdict(int))
            continue
        item = queues.pop()
        assert (item is None) == (not passed)
        if item is None:
            continue
        assert waiting[item[0]].pop(0) == item, "first in, first out of one key"
        del passed[item[0]]
        for other in passed.values():
            other[item[0]] += 1
            assert other[item[0]] == 1
        if waiting[item[0]]:
            passed[item[0]] = defaultdict(int)


def shared(key: str, cores: Cores, rooms: Rooms | None = None) -> SharedWork:
    return SharedWork(key, cores, rooms or Rooms(2), Pace())


def test_an_item_can_be_taken_back_once() -> None:
    queues: Queues[int] = Queues()
    queues.push("a", 1)
    queues.push("a", 2)
    assert queues.remove("a", 1)
    assert not queues.remove("a", 1)
    assert not queues.remove("b", 2)
    assert queues.pop(lambda key: key == "b") is None
    assert queues.pop() == 2
    assert queues.pop() is None


def test_who_gives_a_core_and_takes_it_again_does_not_pass_who_waits() -> None:
    cores, order = Cores(1), []
    with shared("a", cores) as work:
        work.begin(1)

        def run() -> None:
            with shared("b", cores):
                order.append("b")

        other = threading.Thread(target=run)
        other.start()
        while not cores._waiting._queues:
            threading.Event().wait(0.001)
        work.rest()
        order.append("a")
    other.join()
    assert order == ["b", "a"]


def test_a_core_is_free_while_its_holder_waits_for_an_answer() -> None:
    cores = Cores(1)
    with shared("a", cores) as work, work.waiting(), shared("b", cores):
        pass  # it would never get here
    assert cores._free == 1


def test_work_is_what_was_computed_and_waited_for_rests_left_out() -> None:
    now_s = 0.0

    class Resting(Pace):
        def rest(self) -> None:
            nonlocal now_s
            now_s += 1000.0

    work = SharedWork("a", Cores(1), Rooms(2), Resting(), lambda: now_s)
    now_s += 100.0  # for a thread
    with work:
        now_s += 1.0
        work.rest()
        now_s += 2.0
        with work.waiting():
            now_s += 4.0
        now_s += 8.0
    assert work.worked_s == 15.0
    with work:
        now_s += 16.0
        work.start_anew()
        now_s += 32.0
    assert work.worked_s == 32.0


class Reading:
    """Jobs that hold room for what they read until they are told to end."""

    def __init__(self, num_bytes: int) -> None:
        self.room = Room(num_bytes)
        self._in: list[tuple[str, int]] = []
        self._changed = threading.Condition()

    def take(self, key: str, num_bytes: int) -> None:
        """Returns when it waits or is in."""
        waiting = self.room._waiting._queues
        before, entered = sum(map(len, waiting.values())), len(self._in)

        def run() -> None:
            self.room.take(key, num_bytes)
            with self._changed:
                self._in.append((key, num_bytes))
                self._changed.notify_all()

        threading.Thread(target=run, daemon=True).start()
        with self._changed:
            while len(self._in) == entered and sum(map(len, list(waiting.values()))) == before:
                self._changed.wait(0.001)

    def let_in(self, count: int) -> list[tuple[str, int]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._in) >= count, timeout=20)
            return self._in[:]


def test_room_is_held_by_no_tenant_beyond_its_half() -> None:
    jobs = Reading(8)
    jobs.take("a", 3)
    jobs.let_in(1)
    for _ in range(3):
        jobs.take("a", 3)  # beyond its half
    jobs.take("b", 4)
    assert jobs.let_in(2) == [("a", 3), ("b", 4)]
    jobs.take("c", 2)  # there is none left for it
    jobs.room.give("a", 3)
    assert set(jobs.let_in(3)[2:]) < {("a", 3), ("c", 2)}
    jobs.room.give("b", 4)
    assert set(jobs.let_in(4)[2:]) == {("a", 3), ("c", 2)}


def test_a_job_larger_than_the_room_has_it_alone() -> None:
    jobs = Reading(8)
    jobs.take("a", 1)
    jobs.let_in(1)
    jobs.take("b", 99)
    jobs.take("c", 1)  # does not pass it
    jobs.room.give("a", 1)
    assert jobs.let_in(2)[1] == ("b", 99)
    jobs.room.give("b", 99)
    assert jobs.let_in(3)[2] == ("c", 1)


def test_work_that_fits_a_tenants_half_does_not_wait_for_larger_work() -> None:
    """The larger it is the longer it takes, beside steps."""
    cores, rooms = Cores(2), Rooms(16 * QUICK_BYTES)
    large, more, small = (shared(key, cores, rooms) for key in "abc")
    with large:
        large.begin(99 * QUICK_BYTES)
        waiting = threading.Thread(target=lambda: _begin(more, 5 * QUICK_BYTES), daemon=True)
        waiting.start()
        ended = threading.Thread(target=lambda: _begin(small, 4 * QUICK_BYTES), daemon=True)
        ended.start()
        ended.join(20)
        assert not ended.is_alive()
        assert waiting.is_alive()
    large.end()
    waiting.join(20)
    assert not waiting.is_alive()


def _begin(work: SharedWork, num_bytes: int) -> None:
    with work:
        work.begin(num_bytes)
    work.end()


def test_large_work_holds_room_and_no_core_while_it_waits_for_it() -> None:
    cores, rooms = Cores(1), Rooms(2)
    room = rooms.of(QUICK_BYTES + 1)
    room.take("other", 1)
    work, ended = shared("a", cores, rooms), threading.Event()

    def run() -> None:
        with work:
            work.begin(QUICK_BYTES)  # needs none
            work.begin(QUICK_BYTES + 1)
        work.end()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    while not room._waiting._queues:
        threading.Event().wait(0.001)
    with shared("b", cores):
        room.give("other", 1)
    assert ended.wait(20)
    assert (room._held, cores._free) == (0, 1)


class Hanging:
    """Jobs that begin and do not end before they are let go."""

    def __init__(self, own_max: int) -> None:
        self.threads = FairThreads(own_max, "test", lambda: None)
        self.begun: list[str] = []
        self.let_go = threading.Event()
        self._changed = threading.Condition()

    def submit(self, key: str, hangs: bool = True) -> turns.Job:
        def run() -> None:
            with self._changed:
                self.begun.append(key)
                self._changed.notify_all()
            if hangs:
                assert self.let_go.wait(20)

        return self.threads.submit(key, run)

    def wait_for(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, timeout=20)
            return self.begun


@contextmanager
def hanging(own_max: int = 2) -> Iterator[Hanging]:
    jobs = Hanging(own_max)
    yield jobs
    jobs.let_go.set()
    jobs.threads.close()


def test_jobs_that_hang_hold_only_their_own_tenants_threads() -> None:
    with hanging() as jobs:
        for _ in range(10):
            jobs.submit("a")
        assert jobs.wait_for(2) == ["a", "a"]
        jobs.submit("b", hangs=False)
        assert jobs.wait_for(3) == ["a", "a", "b"]
        jobs.let_go.set()
        assert jobs.wait_for(11).count("a") == 10


def test_a_crowd_leaves_each_tenant_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "THREADS_MAX", 4)
    monkeypatch.setattr(turns, "CROWD", 2)
    with hanging() as jobs:
        for key in "abc":
            for _ in range(3):
                jobs.submit(key)
        jobs.submit("d")
        assert sorted(jobs.wait_for(4)) == ["a", "a", "b", "c"]
        late = jobs.submit("e")
        assert jobs.threads.cancel(late)
        assert not jobs.threads.cancel(late)
        jobs.let_go.set()
        assert sorted(jobs.wait_for(10)) == sorted("abcabcabcd")


def test_a_job_that_fails_leaves_the_thread_to_others() -> None:
    with hanging(own_max=1) as jobs:
        jobs.threads.submit("a", lambda: 1 // 0)  # type: ignore[arg-type]
        jobs.submit("a", hangs=False)
        assert jobs.wait_for(1) == ["a"]


def test_what_is_closed_begins_nothing_more() -> None:
    with hanging(own_max=1) as jobs:
        jobs.submit("a")
        jobs.submit("a")
        jobs.wait_for(1)
        jobs.threads.close(timeout_s=0)  # the first one hangs
        jobs.submit("b")
        jobs.let_go.set()
        jobs.threads.close()
        assert jobs.begun == ["a"]
