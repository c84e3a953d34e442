"""What waits, and whose turn it is, behind one interface (`WaitingQueue`): classes and tenants by
what they are owed (`FairQueue`), or first come, first served (`arrival_queue`). It knows neither
memory nor adapters, and costs only by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator
from heapq import heapify, heappop
from typing import Protocol

from tenora_engine.config import ResolvedConfig
from tenora_engine.request import Tenant
from tenora_engine.scheduling.arrival_queue import ArrivalQueue
from tenora_engine.scheduling.class_queue import (
    AHEAD_ROUNDS,
    CLASS_WEIGHTS,
    ClassQueue,
    ClassShares,
    Entry,
    TenantLine,
    Waiting,
    service_class,
)
from tenora_engine.scheduling.parked import Need, Parked
from tenora_engine.scheduling.running import Holder, Standings, holder_of
from tenora_engine.sequence import Sequence
from tenora_engine.telemetry import QueueStats

Turn = tuple[bool, float, int]
"""Of a class and of a tenant in it; the least goes first."""


class WaitingQueue(Protocol):
    """What waits, and whose turn it is; each method as in `queue.FairQueue`. `lets_pass`: whether
    who comes later may start before one that finds no pages."""

    lets_pass: bool
    parked: Parked

    def __len__(self) -> int: ...
    @property
    def num_in_line(self) -> int: ...
    @property
    def num_backlogged(self) -> int: ...
    @property
    def has_excess(self) -> bool: ...
    def __contains__(self, sequence: Sequence) -> bool: ...
    def push(self, sequence: Sequence, now_s: float) -> None: ...
    def push_front(self, sequence: Sequence, now_s: float) -> None: ...
    def remove(self, sequence: Sequence) -> None: ...
    def start(self, sequence: Sequence, is_express: bool = False) -> None: ...
    def charge(self, sequence: Sequence, cost: float) -> None: ...
    def counter(self, tenant_key: str, tier: str) -> float: ...
    def candidates(self, left_out: Collection[Holder] = ()) -> Generator[Sequence, None, None]: ...
    def pass_by(self, sequence: Sequence) -> None: ...
    def park(self, sequence: Sequence, need: Need) -> None: ...
    def wake(self, sequence: Sequence) -> None: ...
    def turn(self, sequence: Sequence) -> Turn: ...
    def first_turn(self) -> Turn | None: ...
    def exceeds_share(self, sequence: Sequence) -> bool: ...
    def may_pass(self, sequence: Sequence, other: Sequence) -> bool: ...
    def express(self) -> Generator[Sequence, None, None]: ...
    def of(self, holders: Collection[Holder]) -> Generator[Sequence, None, None]: ...
    def heads(self) -> Iterator[Sequence]: ...
    def keeps_share(self, tenant: Tenant, name: str) -> bool: ...
    def work(self) -> float: ...
    def work_before(self, sequence: Sequence) -> float: ...
    def sequences(self) -> Iterator[Sequence]: ...
    def waiting_of(self, tenant_key: str) -> int: ...
    def waiting_by_tenant(self) -> dict[str, int]: ...
    def stats(self, now_s: float) -> Iterator[QueueStats]: ...
    def service_gaps(self) -> dict[str, float]: ...
    def service_bounds(self) -> dict[str, float]: ...
    def contested(self) -> dict[str, tuple[float, float]]: ...


class FairQueue:
    """Classes by what they are owed (`ClassShares`), tenants within a class by rounds
    (`ClassQueue`), a tenant's own sequences by what is due first (`TenantLine`). Whatever order
    this gives, `candidates` comes to everything: a share that is not used is used by others, those
    with the least slack first.
    """

    lets_pass = True

    def __init__(self, quantum: float, standings: Standings | None = None) -> None:
        """`standings`: where it is counted who waits."""
        self._standings = standings or Standings()
        self._shares = ClassShares()
        self._backlogs: Counter[str] = Counter()
        self._classes = {name: ClassQueue(quantum, self._backlogs) for name in CLASS_WEIGHTS}
        self._size = 0
        self.parked = Parked()

    def __len__(self) -> int:
        return self._size + len(self.parked)

    @property
    def num_in_line(self) -> int:
        """Those that are not parked: a walk may come to them."""
        return self._size

    @property
    def num_backlogged(self) -> int:
        """Tenants with a backlog."""
        return len(self._backlogs)

    @property
    def has_excess(self) -> bool:
        """Whether a tenant with a backlog does not keep its share. O(their number)."""
        return any(
            not queue.keeps_share(key)
            for queue in self._classes.values()
            for key in queue.backlogged
        )

    def __contains__(self, sequence: Sequence) -> bool:
        line = self._classes[sequence.service.class_name].line(sequence.request.tenant.key)
        return sequence in self.parked or (line is not None and sequence in line)

    def push(self, sequence: Sequence, now_s: float) -> None:
        """To its place in its tenant's line."""
        queue, line = self._enter(sequence)
        line.push(sequence, now_s)
        queue.place(line)

    def push_front(self, sequence: Sequence, now_s: float) -> None:
        """To the head of its tenant's line: it has run before, or its first sequence has."""
        queue, line = self._enter(sequence)
        line.push_front(sequence, now_s)
        queue.place(line)

    def remove(self, sequence: Sequence) -> None:
        """Take out a waiting sequence that does not run."""
        if self.parked.take(sequence) is None:
            self._leave_line(sequence)

    def park(self, sequence: Sequence, need: Need) -> None:
        """Take a waiting sequence out of its line until it is woken: it lacks something. While it
        is parked it asks for no share of anything, and a tenant of which all is parked does not
        count among those that wait for their turn."""
        self.parked.add(self._leave_line(sequence), need)

    def wake(self, sequence: Sequence) -> None:
        """Put a parked sequence back to its place in line. A walk that is under way in that line
        does not see it."""
        waiting = self.parked.take(sequence)
        if waiting is not None:
            queue, line = self._enter(sequence)
            line.put_back(waiting)
            queue.place(line)

    def _leave_line(self, sequence: Sequence) -> Waiting:
        self._size -= 1
        self._standings.wait(sequence, -1)
        return self._classes[sequence.service.class_name].remove(sequence)

    def start(self, sequence: Sequence, is_express: bool = False) -> None:
        """Take out a waiting sequence to run it, of `candidates` or of `express`."""
        self.remove(sequence)
        queue, key = self._classes[sequence.service.class_name], sequence.request.tenant.key
        queue.started(key, in_turn=not is_express or queue.is_turn_of(key))

    def charge(self, sequence: Sequence, cost: float) -> None:
        """To the sequence's tenant and class."""
        name = sequence.service.class_name
        self._classes[name].charge(sequence.request.tenant.key, cost)
        self._shares.charge(name, cost)

    def counter(self, tenant_key: str, tier: str) -> float:
        """Service charged to the tenant in the tier's class, over its weight; 0 for one that is not
        known (any more)."""
        line = self._classes[service_class(tier)].line(tenant_key)
        return 0.0 if line is None else line.counter

    def candidates(self, left_out: Collection[Holder] = ()) -> Generator[Sequence, None, None]:
        """Waiting sequences in fair order, none of the lines that are `left_out`. The caller may
        start, park or remove the one it was just given (and charge its tenant), or pass by the rest
        of its line, before it asks for the next; what it leaves is blocked and passed over; so is
        what leaves the queue by other ways meanwhile. One walk at a time: close it."""
        walked: list[tuple[ClassQueue, TenantLine]] = []
        try:
            for name, key in left_out:
                queue = self._classes[name]
                if key in queue.waiting:
                    line = queue.waiting[key]
                    line.pass_by()
                    walked.append((queue, line))
                    queue.place_by_next(line)
            while (chosen := self._next_class()) is not None:
                queue, (_, due_s, _, _, line) = chosen
                if line.ahead is None:
                    line.begin_walk()
                    walked.append((queue, line))
                waiting = line.next
                if waiting is not None and line.ahead and waiting.due_s == due_s:
                    line.ahead.pop()
                    yield waiting.sequence
                queue.place_by_next(line)
        finally:
            for queue, line in walked:
                line.end_walk()
                queue.place_by_next(line)

    def pass_by(self, sequence: Sequence) -> None:
        """Have the walk that is under way come to no more of the line of the sequence that it has
        just come to."""
        line = self._classes[sequence.service.class_name].line(sequence.request.tenant.key)
        if line is not None and line.ahead is not None:
            line.pass_by()

    def turn(self, sequence: Sequence) -> Turn:
        """Of the tenant of a sequence that runs. Of classes that are all owed, or none of them, the
        heaviest goes first here."""
        name = sequence.service.class_name
        return self._turn(name, self._classes[name].round_of(sequence.request.tenant.key))

    def exceeds_share(self, sequence: Sequence) -> bool:
        """Whether the tenant of a sequence asks for more than its share of its class, so that it is
        to keep out of the way of those who do not."""
        queue = self._classes[sequence.service.class_name]
        return queue.exceeds_share(sequence.request.tenant.key)

    def may_pass(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether a waiting sequence may start before, or instead of, another whose tenant has its
        share of the places: in its class while that leaves it at most AHEAD_ROUNDS after the other;
        those of lighter classes at any time; those of heavier ones unless they alone are owed."""
        name, others = sequence.service.class_name, other.service.class_name
        if name == others:
            queue, keys = (
                self._classes[name],
                (sequence.request.tenant.key, other.request.tenant.key),
            )
            own, its = map(queue.round_of, keys)
            return own <= its + AHEAD_ROUNDS
        if CLASS_WEIGHTS[name] > CLASS_WEIGHTS[others]:
            return True
        return self._shares.is_owed(name) or not self._shares.is_owed(others)

    def express(self) -> Generator[Sequence, None, None]:
        """As `candidates`, of the tenants that keep their shares only. O(tenants that wait)."""
        keys = [
            (name, key)
            for name, queue in self._classes.items()
            for key in queue.waiting
            if queue.keeps_share(key)
        ]
        for queue, line in self._lines(keys):
            line.begin_walk()
            try:
                while line.ahead and line.next is not None and queue.keeps_share(line.key):
                    yield line.ahead.pop().sequence
            finally:
                line.end_walk()
                queue.place_by_next(line)

    def of(self, holders: Collection[Holder]) -> Generator[Sequence, None, None]:
        """As `candidates`, of some tenants in their classes only. O(holders)."""
        for queue, line in self._lines(holders):
            line.begin_walk()
            try:
                while line.ahead and line.next is not None:
                    yield line.ahead.pop().sequence
            finally:
                line.end_walk()
                queue.place_by_next(line)

    def heads(self) -> Iterator[Sequence]:
        """Of each class the first in line."""
        for queue in self._classes.values():
            if queue.first is not None:
                yield queue.first.first

    def _lines(self, holders: Iterable[Holder]) -> Iterator[tuple[ClassQueue, TenantLine]]:
        """Of those that wait, in the order of their turns now. A heap: there may be hundreds, and
        few are asked for."""
        names = sorted(self._classes, key=lambda name: self._turn(name, 0))
        ranks = {name: (rank, self._classes[name].waiting) for rank, name in enumerate(names)}
        heap: list[tuple[int, int, int, TenantLine]] = []  # no two have a class and a turn
        for name, key in holders:
            rank, waiting = ranks[name]
            if key in waiting:
                line = waiting[key]
                heap.append((rank, line.round, line.turn, line))
        heapify(heap)
        while heap:
            rank, _, _, line = heappop(heap)
            yield self._classes[names[rank]], line

    def keeps_share(self, tenant: Tenant, name: str) -> bool:
        """Whether the tenant asks for so little of a class that others may wait for it. From any
        thread."""
        return self._classes[name].keeps_share(tenant.key)

    def first_turn(self) -> Turn | None:
        """The least of all that waits; None when nothing does."""
        turns = [
            self._turn(name, queue.first.round)
            for name, queue in self._classes.items()
            if queue.first is not None
        ]
        return min(turns, default=None)

    def work(self) -> float:
        """Of everything that waits (see `Sequence.work`)."""
        return sum(queue.work() for queue in self._classes.values())

    def work_before(self, sequence: Sequence) -> float:
        """The work that would start before a new sequence, were it pushed now."""
        tenant, name = sequence.request.tenant, sequence.service.class_name
        in_class = self._classes[name].work_before(tenant.key, tenant.weight, sequence.service.work)
        busy = {name, *(other for other, queue in self._classes.items() if queue.waiting)}
        share = CLASS_WEIGHTS[name] / sum(CLASS_WEIGHTS[other] for other in busy)
        return min(in_class / share, self.work())

    def sequences(self) -> Iterator[Sequence]:
        """Everything that waits, in no particular order."""
        for queue in self._classes.values():
            for line in queue.waiting.values():
                yield from line
        yield from (waiting.sequence for waiting in self.parked)

    def waiting_of(self, tenant_key: str) -> int:
        queues = self._classes.values()
        in_line = sum(len(q.waiting[tenant_key]) for q in queues if tenant_key in q.waiting)
        return in_line + self.parked.by_tenant[tenant_key]

    def stats(self, now_s: float) -> Iterator[QueueStats]:
        """What waits, by class and tenant. O(n)."""
        counts: Counter[Holder] = Counter()
        oldest: dict[Holder, float] = {}
        for name, queue in self._classes.items():
            for key, line in queue.waiting.items():
                counts[name, key], oldest[name, key] = len(line), line.oldest_s
        for waiting in self.parked:
            holder = holder_of(waiting.sequence)
            counts[holder] += 1
            oldest[holder] = min(oldest.get(holder, waiting.entered_s), waiting.entered_s)
        for (name, key), count in counts.items():
            yield QueueStats(name, key, count, max(now_s - oldest[name, key], 0.0))

    def service_gaps(self) -> dict[str, float]:
        """By class, see `ClassQueue.service_gap`."""
        return {name: queue.service_gap() for name, queue in self._classes.items()}

    def service_bounds(self) -> dict[str, float]:
        """By class, see `ClassQueue.service_bound`."""
        return {name: queue.service_bound() for name, queue in self._classes.items()}

    def contested(self) -> dict[str, tuple[float, float]]:
        """Gap and bound, by class, of those in which several tenants wait."""
        return {
            name: (queue.service_gap(), queue.service_bound())
            for name, queue in self._classes.items()
            if len(queue.waiting) > 1
        }

    def waiting_by_tenant(self) -> dict[str, int]:
        tenants = {key for queue in self._classes.values() for key in queue.waiting}
        tenants |= self.parked.by_tenant.keys()
        return {key: self.waiting_of(key) for key in sorted(tenants)}

    def _turn(self, name: str, number: int) -> Turn:
        return (not self._shares.is_owed(name), -CLASS_WEIGHTS[name], number)

    def _enter(self, sequence: Sequence) -> tuple[ClassQueue, TenantLine]:
        queue = self._classes[sequence.service.class_name]
        if not queue.waiting:
            self._shares.enter(sequence.service.class_name)
        self._size += 1
        self._standings.wait(sequence, 1)
        return queue, queue.enter(sequence)

    def _next_class(self) -> tuple[ClassQueue, Entry] | None:
        """The one that is owed service, of several the one with the least slack, and the entry of
        the tenant whose turn it is in it."""
        best: tuple[bool, float] | None = None
        chosen = None
        for name, queue in self._classes.items():
            head = queue.head()
            if head is not None:
                key = not self._shares.is_owed(name), head[1]
                if best is None or key < best:
                    best, chosen = key, (queue, head)
        return chosen


ROUNDS_A_STEP = 8
"""A tenant's turn is this part of a step: whoever comes to the queue waits for no more of it than
that, however much of it is overdue."""


def make_queue(config: ResolvedConfig, standings: Standings) -> WaitingQueue:
    engine = config.engine
    if engine.scheduling_policy == "fcfs":
        return ArrivalQueue()
    return FairQueue(max(engine.max_step_tokens / ROUNDS_A_STEP, 1.0), standings)
