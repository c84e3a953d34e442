"""Turns: how jobs of many tenants share threads and cores. Each tenant's next job stands behind no
more than one of each other tenant's. Knows nothing of adapters."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from tenora_engine.pace import QUICK_BYTES, Pace

T = TypeVar("T")

_log = logging.getLogger(__name__)

THREADS_MAX = 32
"""Jobs under way at one time: one that waits for a disk or a network holds a thread."""

CROWD = THREADS_MAX // 4
"""Jobs under way from which nobody begins a second one."""

_IDLE_S = 60.0  # then a thread ends
_CLOSE_S = 10.0


class Queues(Generic[T]):
    """First in, first out by key; the keys take turns. Not safe in threads."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()  # the next key's first

    def push(self, key: str, item: T) -> None:
        self._queues.setdefault(key, deque()).append(item)

    def pop(self, may: Callable[[str], bool] = lambda _: True) -> T | None:
        """The first item of the key whose turn it is among those that `may`. O(keys)."""
        key = self.next(may)
        if key is None:
            return None
        own = self._queues[key]
        item = own.popleft()
        self._queues.move_to_end(key)
        if not own:
            del self._queues[key]
        return item

    def next(self, may: Callable[[str], bool]) -> str | None:
        """The key whose turn it is."""
        return next(filter(may, self._queues), None)

    def first(self, key: str) -> T:
        """The first item of a key that has some."""
        return self._queues[key][0]

    def remove(self, key: str, item: T) -> bool:
        """Whether it was there."""
        own = self._queues.get(key)
        if own is None or item not in own:
            return False
        own.remove(item)
        if not own:
            del self._queues[key]
        return True

    def clear(self) -> None:
        self._queues.clear()


class Cores:
    """So many threads compute at one time. A core that is given goes to the tenant whose turn it
    is, if any waits: whoever gives and takes again does not pass the others. Safe in threads."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: Queues[threading.Lock] = Queues()
        self._lock = threading.Lock()

    def take(self, key: str) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            given = threading.Lock()
            given.acquire()
            self._waiting.push(key, given)
        given.acquire()

    def give(self) -> None:
        with self._lock:
            given = self._waiting.pop()
            if given is None:
                self._free += 1
            else:
                given.release()


class Room:
    """Memory for what jobs read: `num_bytes` at one time, half of it for one tenant, or a single
    job of any size. Who waits for room is let in by the tenants' turns, and nobody passes one that
    waits for others than its own tenant. Safe in threads."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._own: Counter[str] = Counter()  # bytes held
        self._held = 0
        self._waiting: Queues[tuple[int, threading.Lock]] = Queues()
        self._lock = threading.Lock()

    def take(self, key: str, num_bytes: int) -> None:
        given = threading.Lock()
        given.acquire()
        with self._lock:
            self._waiting.push(key, (num_bytes, given))
            self._let_in()
        given.acquire()

    def give(self, key: str, num_bytes: int) -> None:
        with self._lock:
            self._hold(key, -num_bytes)
            self._let_in()

    def _let_in(self) -> None:
        while (key := self._waiting.next(self._is_within_own)) is not None:
            num_bytes, given = self._waiting.first(key)
            if self._held and self._held + num_bytes > self._num_bytes:
                return
            self._waiting.pop(self._is_within_own)
            self._hold(key, num_bytes)
            given.release()

    def _is_within_own(self, key: str) -> bool:
        own = self._own.get(key, 0)
        return not own or own + self._waiting.first(key)[0] <= self._num_bytes // 2

    def _hold(self, key: str, num_bytes: int) -> None:
        self._held += num_bytes
        self._own[key] += num_bytes
        if not self._own[key]:
            del self._own[key]


class Rooms:
    """Two equal rooms of `num_bytes` together: one for jobs that fit a tenant's half of it, one for
    larger ones. The larger a job the slower its pace, down to minutes; only its like wait for it.
    Safe in threads."""

    def __init__(self, num_bytes: int) -> None:
        self._small, self._large = Room(num_bytes // 2), Room(num_bytes // 2)
        self._most_small = num_bytes // 4

    def of(self, num_bytes: int) -> Room:
        """Where a job of that size takes room."""
        return self._small if num_bytes <= self._most_small else self._large


class SharedWork:
    """The `Work` of one job: a core is held while it computes, and given to others while it rests
    or waits for an answer; room is held for what it reads until it ends, if that is more than
    QUICK_BYTES. `worked_s` is what it computed and waited for answers, in seconds: rests and waits
    for a core or for room are left out. Of one thread; a context, entered once or more."""

    def __init__(
        self,
        key: str,
        cores: Cores,
        rooms: Rooms,
        pace: Pace,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._key = key
        self._cores = cores
        self._rooms = rooms
        self._pace = pace
        self._clock = clock
        self._since_s = 0.0
        self._held_bytes = 0
        self.worked_s = 0.0

    def __enter__(self) -> Self:
        self._cores.take(self._key)
        self._since_s = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_clock()
        self._cores.give()

    def begin(self, num_bytes: int) -> None:
        if num_bytes > QUICK_BYTES:
            self.__exit__()
            self.end()
            self._rooms.of(num_bytes).take(self._key, num_bytes)
            self._held_bytes = num_bytes
            self.__enter__()
        self._pace.begin(num_bytes)

    def end(self) -> None:
        """What it read is gone."""
        if self._held_bytes:
            self._rooms.of(self._held_bytes).give(self._key, self._held_bytes)
            self._held_bytes = 0

    def rest(self) -> None:
        self.__exit__()
        try:
            self._pace.rest()
        finally:
            self.__enter__()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._cores.give()
        try:
            yield
        finally:
            self._stop_clock()
            self.__enter__()

    def start_anew(self) -> None:
        """What came before has been in vain."""
        self.worked_s, self._since_s = 0.0, self._clock()

    def _stop_clock(self) -> None:
        self.worked_s += self._clock() - self._since_s


@dataclass(eq=False)
class Job:
    """One to run, in its tenant's turn."""

    key: str
    run: Callable[[], None]


class FairThreads:
    """Runs jobs of tenants: at most `own_max` of one tenant at a time, THREADS_MAX of all, and a
    second one of a tenant only while fewer than CROWD are under way. So a tenant whose jobs hang
    holds `own_max` threads, and what others wait for is a thread only once THREADS_MAX jobs, of
    CROWD tenants at least, hang at the same time. How long one can hang is its own affair: a store
    on the network has a time-out, a disk that never answers has none, and nobody else waits for it.
    Threads begin as they are needed and end when idle. Safe in threads."""

    def __init__(self, own_max: int, name: str, initializer: Callable[[], None]) -> None:
        self._own_max = own_max
        self._name = name
        self._initializer = initializer
        self._jobs: Queues[Job] = Queues()
        self._own: Counter[str] = Counter()  # under way
        self._under_way = 0
        self._idle: list[queue.SimpleQueue[Job | None]] = []
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, key: str, run: Callable[[], None]) -> Job:
        """`run` is called in a thread when it is its turn. Nothing comes of it once closed."""
        job = Job(key, run)
        with self._lock:
            if not self._closed:
                self._jobs.push(key, job)
                self._dispatch()
        return job

    def cancel(self, job: Job) -> bool:
        """Whether it had not begun, and will not now."""
        with self._lock:
            return self._jobs.remove(job.key, job)

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Drop what has not begun, and wait for the rest to end, not for ever."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
            while self._idle:
                self._idle.pop().put(None)
            threads = list(self._threads)
        until_s = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(until_s - time.monotonic(), 0.0))

    def _dispatch(self) -> None:
        job = self._pop()
        if job is None:
            return
        if self._idle:
            self._idle.pop().put(job)
            return
        thread = threading.Thread(target=self._serve, args=(job,), name=self._name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _pop(self) -> Job | None:
        job = self._jobs.pop(self._may_begin)
        if job is not None:
            self._own[job.key] += 1
            self._under_way += 1
        return job

    def _may_begin(self, key: str) -> bool:
        own = self._own.get(key, 0)
        if not own:
            return self._under_way < THREADS_MAX
        return own < self._own_max and self._under_way < CROWD

    def _serve(self, first: Job) -> None:
        self._initializer()
        job: Job | None = first
        while job is not None:
            try:
                job.run()
            except Exception:  # the thread has other tenants' jobs to do
                _log.exception("a job failed")
            job = self._next(job)

    def _next(self, done: Job) -> Job | None:
        """The thread's next job; None ends it."""
        with self._lock:
            self._under_way -= 1
            self._own[done.key] -= 1
            if not self._own[done.key]:
                del self._own[done.key]
            job = self._pop()
            if job is not None:
                return job
            if self._closed:
                self._threads.discard(threading.current_thread())
                return None
            box: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
            self._idle.append(box)
        try:
            return box.get(timeout=_IDLE_S)
        except queue.Empty:
            with self._lock:
                if box in self._idle:
                    self._idle.remove(box)
                    self._threads.discard(threading.current_thread())
                    return None
        return box.get()
