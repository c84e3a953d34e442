"""FairQueue: what waits, by class and tenant, and whose turn it is. It knows neither memory nor
adapters, and costs only by number."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import count

from tenora_engine.request import Tenant
from tenora_engine.scheduling.classes import CLASS_WEIGHTS, ClassShares, service_class
from tenora_engine.scheduling.line import TenantLine
from tenora_engine.sequence import Sequence
from tenora_engine.telemetry import QueueStats

CREDIT_ROUNDS = 16
"""Rounds by which a tenant that comes to the queue may be behind: what it may be owed of the time
in which others waited and it did not."""

BACKLOG_ROUNDS = 2.5
"""A tenant has a backlog when so many rounds' work of it waits."""

AHEAD_ROUNDS = 4
"""A tenant keeps within its share while it is not further ahead of the others than this."""

_TENANTS_KEPT = 4096

Turn = tuple[bool, float, int]
"""Of a class and of a tenant in it; the least goes first."""

_Entry = tuple[int, float, int, int, TenantLine]  # round, due_s, turn, a number; least first


class ClassQueue:
    """The tenants of one class, in rounds of `quantum` tokens of service over weight.

    Deficits as in DLPM (Cao et al., "Locality-aware fair scheduling in LLM serving", 2025): within
    a round a tenant may go as long as some of its quantum is left, in the order of what is due
    first; when nobody has any left, the next round begins. Here a tenant's round is the number of
    whole quanta in its counter, and the least round goes first, so that no deficit has to be
    refilled and a tenant that is blocked does not hold the round up.

    Where a tenant enters the queue, it is lifted to CREDIT_ROUNDS before the last round in which
    anything started, so that a few requests at once of one that stays within its share do not wait
    for a backlog of others; and to no less than that round as it was when somebody last came to an
    empty queue: while nobody waits, nobody is deprived of anything, and no service is saved up.

    Bound. Let two tenants i and j both have something that can start, always, and let U be the most
    that one of them is charged for what it has running, from start to end, over its weight. Then
    the service they have had over their weights differs by less than
    2 * ((1 + CREDIT_ROUNDS) * quantum + U) in any span of time, and by less than quantum + U from
    where their counters are the same. Proof: i starts something only in a round not after j's, so
    with a counter below j's + quantum; until its next start it is charged at most U, and j's
    counter never falls. So from i's first start on, c_i - c_j < quantum + U. What i started before
    j entered leaves it below the end of the last round plus U, and j enters at most CREDIT_ROUNDS
    before that round: c_i - c_j < (1 + CREDIT_ROUNDS) * quantum + U at all times, and the same with
    i and j exchanged; over a span this changes by less than the two together. What starts express
    leaves the last round where it is and its tenant at most AHEAD_ROUNDS after it: where there is
    any, both bounds are AHEAD_ROUNDS more of a quantum (the first one twice).
    """

    def __init__(self, quantum: float, backlogs: Counter[str]) -> None:
        """`backlogs` counts the classes in which a tenant has a backlog."""
        self.waiting: dict[str, TenantLine] = {}
        self.backlogged: set[str] = set()  # tenants with much that waits (BACKLOG_ROUNDS)
        self._backlogs = backlogs
        self._quantum = quantum
        self._lines: dict[str, TenantLine] = {}
        self._lines_kept = _TENANTS_KEPT
        self._turns = count(1)
        self._round = 0  # the last in which anything started
        self._empty_round = 0  # the same, when somebody last came to an empty queue
        # The tenants that wait, in order, among entries that hold no more: a tenant's own is in
        # `_entries`.
        self._heap: list[_Entry] = []
        self._entries: dict[TenantLine, _Entry] = {}
        self._numbers = count()

    def line(self, tenant_key: str) -> TenantLine | None:
        return self._lines.get(tenant_key)

    @property
    def first(self) -> TenantLine | None:
        """Whose turn it is."""
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][-1]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][-1] if heap else None

    @property
    def first_due_s(self) -> float:
        """When its next sequence is due. There must be one."""
        return self._heap[0][1]

    def round_of(self, tenant_key: str) -> int:
        line = self._lines.get(tenant_key)
        return self._round if line is None else line.round

    def place(self, line: TenantLine) -> None:
        """Put a tenant that waits where it belongs; to be called when anything that the order goes
        by has changed. O(log tenants)."""
        has_backlog = line.work >= BACKLOG_ROUNDS * self._quantum * line.weight
        if has_backlog is not (line.key in self.backlogged):
            self._note_backlog(line.key, has_backlog)
        waiting = line.next
        entry = self._entries.get(line)
        if waiting is None:
            if entry is not None:
                del self._entries[line]
        elif entry is None or entry[0] != line.round or entry[1] != waiting.due_s:
            entry = (line.round, waiting.due_s, line.turn, next(self._numbers), line)
            self._entries[line] = entry
            heapq.heappush(self._heap, entry)
            if len(self._heap) > 2 * len(self._entries) + 64:
                self._heap = list(self._entries.values())
                heapq.heapify(self._heap)

    def enter(self, sequence: Sequence) -> TenantLine:
        """The line that the sequence is to be pushed to, and `place` to be called for."""
        tenant = sequence.request.tenant
        line = self._lines.get(tenant.key)
        if line is None:
            self._forget_the_idle()
            line = self._lines[tenant.key] = TenantLine(tenant.key, tenant.weight)
        line.weight = tenant.weight
        if tenant.key not in self.waiting:
            if not self.waiting:
                self._empty_round = self._round
            least = self._least_round
            if line.round < least:
                line.counter, line.round = least * self._quantum, least
            line.turn = next(self._turns)
            self.waiting[tenant.key] = line
        return line

    def remove(self, sequence: Sequence) -> None:
        key = sequence.request.tenant.key
        line = self._lines[key]
        line.remove(sequence)
        if not len(line):
            del self.waiting[key]
        self.place(line)

    def started(self, tenant_key: str) -> None:
        """One of the tenant's sequences has been taken out to run, since it was its turn."""
        self._round = max(self._round, self._lines[tenant_key].round)

    def charge(self, tenant_key: str, cost: float) -> None:
        line = self._lines.get(tenant_key)
        if line is not None:
            line.counter += cost / line.weight
            number = int(line.counter // self._quantum)
            if number != line.round:
                line.round = number
                self.place(line)

    def exceeds_share(self, tenant_key: str) -> bool:
        """Whether the tenant has a backlog and is behind nobody."""
        return tenant_key in self.backlogged and self._lines[tenant_key].round >= self._round

    def keeps_share(self, tenant_key: str) -> bool:
        """Whether the tenant, had it all that waits of it, would be no more than AHEAD_ROUNDS ahead
        of the last round."""
        line = self._lines.get(tenant_key)
        if line is None:
            return True
        owed = (self._round + AHEAD_ROUNDS - line.round) * self._quantum * line.weight
        return line.work <= owed

    def work(self) -> float:
        return sum(line.work for line in self.waiting.values())

    def work_before(self, tenant_key: str, weight: float, work: float) -> float:
        """What shares let start before new `work` of a tenant has: its own line, and of each other
        tenant as much as its weight allows meanwhile."""
        line = self.waiting.get(tenant_key)
        own = 0.0 if line is None else line.work
        others = sum(
            min(other.work, (own + work) * other.weight / weight)
            for other in self.waiting.values()
            if other is not line
        )
        return own + others

    def service_gap(self) -> float:
        """The largest difference between the counters of two tenants that wait."""
        counters = [line.counter for line in self.waiting.values()]
        return max(counters) - min(counters) if counters else 0.0

    @property
    def _least_round(self) -> int:
        """Of a tenant that enters the queue."""
        return max(self._round - CREDIT_ROUNDS, self._empty_round)

    def _note_backlog(self, tenant_key: str, has_backlog: bool) -> None:
        if has_backlog:
            self.backlogged.add(tenant_key)
            self._backlogs[tenant_key] += 1
            return
        self.backlogged.remove(tenant_key)
        self._backlogs[tenant_key] -= 1
        if not self._backlogs[tenant_key]:
            del self._backlogs[tenant_key]

    def _forget_the_idle(self) -> None:
        """Tenants who would be lifted anyway when they return need not be remembered."""
        if len(self._lines) < self._lines_kept:
            return
        least = self._least_round
        self._lines = {
            key: line for key, line in self._lines.items() if len(line) or line.round > least
        }
        self._lines_kept = max(_TENANTS_KEPT, 2 * len(self._lines))


class FairQueue:
    """Classes by what they are owed (`ClassShares`), tenants within a class by rounds
    (`ClassQueue`), a tenant's own sequences by what is due first (`TenantLine`). Whatever order
    this gives, `candidates` comes to everything: a share that is not used is used by others, those
    with the least slack first.
    """

    lets_pass = True

    def __init__(self, quantum: float) -> None:
        self._shares = ClassShares()
        self._backlogs: Counter[str] = Counter()
        self._classes = {name: ClassQueue(quantum, self._backlogs) for name in CLASS_WEIGHTS}
        self._size = 0

    def __len__(self) -> int:
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
        line = self._classes[sequence.service_class].line(sequence.request.tenant.key)
        return line is not None and sequence in line

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
        self._classes[sequence.service_class].remove(sequence)
        self._size -= 1

    def start(self, sequence: Sequence, is_express: bool = False) -> None:
        """Take out a waiting sequence to run it, of `candidates` or of `express`."""
        self.remove(sequence)
        if not is_express:
            self._classes[sequence.service_class].started(sequence.request.tenant.key)

    def charge(self, sequence: Sequence, cost: float) -> None:
        """To the sequence's tenant and class."""
        name = sequence.service_class
        self._classes[name].charge(sequence.request.tenant.key, cost)
        self._shares.charge(name, cost)

    def counter(self, tenant_key: str, tier: str) -> float:
        """Service charged to the tenant in the tier's class, over its weight; 0 for one that is not
        known (any more)."""
        line = self._classes[service_class(tier)].line(tenant_key)
        return 0.0 if line is None else line.counter

    def candidates(self) -> Generator[Sequence, None, None]:
        """Waiting sequences in fair order. The caller may start or remove the one it was just given
        (and charge its tenant) before it asks for the next; what it leaves is blocked and passed
        over; so is what leaves the queue by other ways meanwhile. One walk at a time: close it."""
        walked: list[tuple[ClassQueue, TenantLine]] = []
        try:
            while (queue := self._next_class()) is not None:
                line = queue.first
                assert line is not None
                if line.ahead is None:
                    line.begin_walk()
                    walked.append((queue, line))
                waiting, due_s = line.next, queue.first_due_s
                if waiting is not None and line.ahead and waiting.due_s == due_s:
                    line.ahead.popleft()
                    yield waiting.sequence
                queue.place(line)
        finally:
            for queue, line in walked:
                line.end_walk()
                queue.place(line)

    def turn(self, sequence: Sequence) -> Turn:
        """Of the tenant of a sequence that runs. Of classes that are all owed, or none of them, the
        heaviest goes first here."""
        name = sequence.service_class
        return self._turn(name, self._classes[name].round_of(sequence.request.tenant.key))

    def exceeds_share(self, sequence: Sequence) -> bool:
        """Whether the tenant of a sequence asks for more than its share of its class, so that it is
        to keep out of the way of those who do not."""
        queue = self._classes[sequence.service_class]
        return queue.exceeds_share(sequence.request.tenant.key)

    def express(self) -> Generator[Sequence, None, None]:
        """As `candidates`, of the tenants that keep their shares only. O(tenants that wait)."""
        lines = [
            (self._turn(name, line.round), line.turn, queue, line)
            for name, queue in self._classes.items()
            for key, line in queue.waiting.items()
            if queue.keeps_share(key)
        ]
        for _, _, queue, line in sorted(lines, key=lambda each: each[:2]):
            line.begin_walk()
            try:
                while line.ahead and line.next is not None and queue.keeps_share(line.key):
                    yield line.ahead.popleft().sequence
            finally:
                line.end_walk()
                queue.place(line)

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
        tenant, name = sequence.request.tenant, sequence.service_class
        in_class = self._classes[name].work_before(tenant.key, tenant.weight, sequence.work)
        busy = {name, *(other for other, queue in self._classes.items() if queue.waiting)}
        share = CLASS_WEIGHTS[name] / sum(CLASS_WEIGHTS[other] for other in busy)
        return min(in_class / share, self.work())

    def sequences(self) -> Iterator[Sequence]:
        """Everything that waits, in no particular order."""
        for queue in self._classes.values():
            for line in queue.waiting.values():
                yield from line

    def waiting_of(self, tenant_key: str) -> int:
        queues = self._classes.values()
        return sum(len(q.waiting[tenant_key]) for q in queues if tenant_key in q.waiting)

    def stats(self, now_s: float) -> Iterator[QueueStats]:
        """What waits, by class and tenant."""
        for name, queue in self._classes.items():
            for key, line in queue.waiting.items():
                yield QueueStats(name, key, len(line), max(now_s - line.oldest_s, 0.0))

    def service_gaps(self) -> dict[str, float]:
        """By class, see `ClassQueue.service_gap`."""
        return {name: queue.service_gap() for name, queue in self._classes.items()}

    def waiting_by_tenant(self) -> dict[str, int]:
        tenants = {key for queue in self._classes.values() for key in queue.waiting}
        return {key: self.waiting_of(key) for key in sorted(tenants)}

    def _turn(self, name: str, number: int) -> Turn:
        return (not self._shares.is_owed(name), -CLASS_WEIGHTS[name], number)

    def _enter(self, sequence: Sequence) -> tuple[ClassQueue, TenantLine]:
        queue = self._classes[sequence.service_class]
        if not queue.waiting:
            self._shares.enter(sequence.service_class)
        self._size += 1
        return queue, queue.enter(sequence)

    def _next_class(self) -> ClassQueue | None:
        """The one that is owed service, of several the one with the least slack."""
        best: tuple[bool, float] | None = None
        chosen = None
        for name, queue in self._classes.items():
            if queue.first is not None:
                key = not self._shares.is_owed(name), queue.first_due_s
                if best is None or key < best:
                    best, chosen = key, queue
        return chosen
