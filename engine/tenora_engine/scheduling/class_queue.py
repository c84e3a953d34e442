"""ClassQueue: the tenants of one class that wait, and whose turn it is. It knows neither memory nor
adapters, and costs only by number."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from tenora_engine.sequence import Sequence

CLASS_WEIGHTS = {"priority": 4.0, "default": 2.0, "flex": 1.0}
"""The classes, and the part of the engine that each is owed while it has work."""

DEFAULT_CLASS = "default"
LOWEST_CLASS = min(CLASS_WEIGHTS, key=lambda name: CLASS_WEIGHTS[name])

CREDIT_TOKENS = 8192.0
"""How much service (in tokens, see `charges`) a class may be owed for a time in which it had no
work, and how much of what it took beyond its share counts against it later."""

_TOTAL = sum(CLASS_WEIGHTS.values())


def service_class(tier: str) -> str:
    """The class in which a tenant's requests of this tier wait; a tier that no class is named after
    is served as the default."""
    return tier if tier in CLASS_WEIGHTS else DEFAULT_CLASS


class ClassShares:
    """Weighted deficits of the classes (deficit round robin: Shreedhar and Varghese, 1995; kept as
    virtual time, which rises by each charge over the sum of the weights).

    A class is owed service while its own counter lags behind virtual time: it has had less than its
    share of everything charged. Classes which are owed go first; what they leave unused anybody may
    take, and both what an idle class is owed and what a busy one took too much are limited to
    CREDIT_TOKENS, so that neither is made up for without end.
    """

    def __init__(self) -> None:
        self._time = 0.0
        self._counters = dict.fromkeys(CLASS_WEIGHTS, 0.0)

    def is_owed(self, name: str) -> bool:
        return self._counters[name] <= self._time

    def charge(self, name: str, cost: float) -> None:
        weight = CLASS_WEIGHTS[name]
        self._time += cost / _TOTAL
        most, counter = self._time + CREDIT_TOKENS / weight, self._counters[name] + cost / weight
        self._counters[name] = counter if counter < most else most

    def enter(self, name: str) -> None:
        """The class has work again."""
        least = self._time - CREDIT_TOKENS / CLASS_WEIGHTS[name]
        self._counters[name] = max(self._counters[name], least)


AGE_S = 30.0
"""Whatever waits is due after this time, so that it is passed by nothing that is due later."""

FIRST = float("-inf")
_numbers = count()


class Waiting(NamedTuple):
    """Sorts by what is due first, then by arrival."""

    due_s: float
    number: int
    entered_s: float
    sequence: Sequence


class TenantLine:
    """What has run before goes first (the latest preempted at the head), then the rest by
    `Sequence.due_s`, but as if due AGE_S after it came at the latest: nothing that comes later than
    that passes it.

    `counter` is the service charged to the tenant over its weight, `work` the sum of what waits.
    A *walk* goes along the line without taking anything out: `ahead` is then what it has not come
    to yet, the next at its end, and None otherwise.
    """

    __slots__ = (
        "_order", "_waiting", "ahead", "counter", "key", "round", "started", "turn", "weight",
        "work",
    )  # fmt: skip

    def __init__(self, key: str, weight: float) -> None:
        self.key = key
        self.weight = weight
        self.counter = 0.0
        self.started = 0.0  # the counter at its last start
        self.round = 0  # the ClassQueue's
        self.turn = 0
        self.work = 0.0
        self.ahead: list[Waiting] | None = None
        self._order: list[Waiting] = []
        self._waiting: dict[Sequence, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    @property
    def next(self) -> Waiting | None:
        """The first in order; in a walk, the first that it has not come to."""
        ahead = self.ahead
        if ahead is None:
            return self._order[0] if self._order else None
        while ahead and ahead[-1].sequence not in self._waiting:
            ahead.pop()
        return ahead[-1] if ahead else None

    @property
    def first(self) -> Sequence:
        """The first in order, wherever a walk is; there must be one."""
        return self._order[0].sequence

    @property
    def oldest_s(self) -> float:
        """When the first of those that wait came; there must be one. O(n)."""
        return min(waiting.entered_s for waiting in self._waiting.values())

    def push(self, sequence: Sequence, now_s: float) -> None:
        due_s = min(sequence.service.due_s, now_s + AGE_S)
        self._insert(Waiting(due_s, next(_numbers), now_s, sequence))

    def push_front(self, sequence: Sequence, now_s: float) -> None:
        self._insert(Waiting(FIRST, -next(_numbers), now_s, sequence))

    def remove(self, sequence: Sequence) -> Waiting:
        """O(log n), and moving up what stands behind."""
        waiting = self._waiting.pop(sequence)
        del self._order[bisect_left(self._order, waiting)]
        self.work = self.work - sequence.service.work if self._order else 0.0  # without rounding
        return waiting

    def put_back(self, waiting: Waiting) -> None:
        """What `remove` gave goes back to its place. A walk that is under way does not see it."""
        self._insert(waiting)

    def begin_walk(self) -> None:
        self.ahead = self._order[::-1]

    def pass_by(self) -> None:
        """Have the walk come to nothing more of this line."""
        self.ahead = []

    def end_walk(self) -> None:
        self.ahead = None

    def _insert(self, waiting: Waiting) -> None:
        insort(self._order, waiting)
        self._waiting[waiting.sequence] = waiting
        self.work += waiting.sequence.service.work


CREDIT_ROUNDS = 16
"""Rounds by which a tenant that comes to the queue may be behind: what it may be owed of the time
in which others waited and it did not."""

BACKLOG_ROUNDS = 2.5
"""A tenant has a backlog when so many rounds' work of it waits."""

AHEAD_ROUNDS = 4
"""A tenant keeps within its share while it is not further ahead of the others than this."""

_TENANTS_KEPT = 4096

Entry = tuple[int, float, int, int, TenantLine]  # round, due_s, turn, a number; least first


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
    before its turn leaves the last round where it is and its tenant at most AHEAD_ROUNDS after it,
    and what starts in a place that another gives up is at most AHEAD_ROUNDS after all those in its
    class that could start but for a place (`FairQueue.may_pass`): where there is any, both bounds
    are AHEAD_ROUNDS more of a quantum (the first one twice).
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
        self._heap: list[Entry] = []
        self._entries: dict[TenantLine, Entry] = {}
        self._numbers = count()

    def line(self, tenant_key: str) -> TenantLine | None:
        return self._lines.get(tenant_key)

    @property
    def first(self) -> TenantLine | None:
        """Whose turn it is."""
        head = self.head()
        return None if head is None else head[-1]

    def head(self) -> Entry | None:
        """The entry of `first`, with when its next sequence is due."""
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[-1]) is entry:
                return entry
            heapq.heappop(heap)
        return None

    def round_of(self, tenant_key: str) -> int:
        line = self._lines.get(tenant_key)
        return self._round if line is None else line.round

    def place(self, line: TenantLine) -> None:
        """Put a tenant that waits where it belongs; to be called when anything that the order goes
        by has changed. O(log tenants)."""
        has_backlog = line.work >= BACKLOG_ROUNDS * self._quantum * line.weight
        if has_backlog is not (line.key in self.backlogged):
            self._note_backlog(line.key, has_backlog)
        self.place_by_next(line)

    def place_by_next(self, line: TenantLine) -> None:
        """The same, where nothing has changed but which of its sequences is the next."""
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
                line.started = max(line.started, line.counter)
            line.turn = next(self._turns)
            self.waiting[tenant.key] = line
        return line

    def remove(self, sequence: Sequence) -> Waiting:
        key = sequence.request.tenant.key
        line = self._lines[key]
        waiting = line.remove(sequence)
        if not len(line):
            del self.waiting[key]
        self.place(line)
        return waiting

    def is_turn_of(self, tenant_key: str) -> bool:
        """Whether nobody who waits stands in an earlier round."""
        first = self.first
        return first is None or self._lines[tenant_key].round <= first.round

    def started(self, tenant_key: str, *, in_turn: bool = True) -> None:
        """One of the tenant's sequences has been taken out to run, `in_turn` or express."""
        line = self._lines[tenant_key]
        line.started = line.counter
        if in_turn:
            self._round = max(self._round, line.round)

    def charge(self, tenant_key: str, cost: float) -> None:
        line = self._lines.get(tenant_key)
        if line is not None:
            line.counter += cost / line.weight
            number = int(line.counter // self._quantum)
            if number != line.round:
                line.round = number
                self.place_by_next(line)

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

    def service_bound(self) -> float:
        """What `service_gap` is below, proven above: `c_i - c_j` with all that i was charged since
        its last start for U, which is the most that it can be at this moment."""
        most = max((line.counter - line.started for line in self.waiting.values()), default=0.0)
        return (1 + CREDIT_ROUNDS + AHEAD_ROUNDS) * self._quantum + most

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
