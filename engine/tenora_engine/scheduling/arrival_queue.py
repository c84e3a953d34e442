"""ArrivalQueue: first come, first served, whoever asks. Other orders are measured against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator

from tenora_engine.request import Tenant
from tenora_engine.scheduling.class_queue import Waiting
from tenora_engine.scheduling.parked import Need, Parked
from tenora_engine.scheduling.running import Holder
from tenora_engine.sequence import Sequence
from tenora_engine.telemetry import QueueStats


class ArrivalQueue:
    """First come, first served, whoever asks: the order that others are measured against."""

    lets_pass = False

    def __init__(self) -> None:
        # When each came to wait.
        self._line: dict[Sequence, float] = {}
        self._again: dict[Sequence, float] = {}  # goes before the line, the latest first
        self.parked = Parked()
        self._tenants: Counter[str] = Counter()
        self._work = 0.0

    def __len__(self) -> int:
        return len(self._line) + len(self._again)

    @property
    def num_in_line(self) -> int:
        return len(self) - len(self.parked)

    @property
    def num_backlogged(self) -> int:
        return 0

    @property
    def has_excess(self) -> bool:
        return False

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._line or sequence in self._again

    def push(self, sequence: Sequence, now_s: float) -> None:
        self._line[sequence] = now_s
        self._entered(sequence)

    def push_front(self, sequence: Sequence, now_s: float) -> None:
        self._again[sequence] = now_s
        self._entered(sequence)

    def remove(self, sequence: Sequence) -> None:
        self.parked.take(sequence)
        del (self._line if sequence in self._line else self._again)[sequence]
        self._work = self._work - sequence.service.work if len(self) else 0.0
        key = sequence.request.tenant.key
        self._tenants[key] -= 1
        if not self._tenants[key]:
            del self._tenants[key]

    def start(self, sequence: Sequence, is_express: bool = False) -> None:
        self.remove(sequence)

    def charge(self, sequence: Sequence, cost: float) -> None:
        """Nothing: what a tenant has had does not count."""

    def counter(self, tenant_key: str, tier: str) -> float:
        return 0.0

    def candidates(self, left_out: Collection[Holder] = ()) -> Generator[Sequence, None, None]:
        """See `FairQueue.candidates`. O(n) for the list."""
        for sequence in [*reversed(self._again), *self._line]:
            if sequence in self and sequence not in self.parked:
                yield sequence

    def pass_by(self, sequence: Sequence) -> None:
        """Nothing: there are no lines of tenants."""

    def park(self, sequence: Sequence, need: Need) -> None:
        """See `FairQueue.park`; it keeps its place in line."""
        came_s = self._line.get(sequence, 0.0)
        waiting = Waiting(came_s, sequence.number, came_s, sequence)
        self.parked.add(waiting, need)

    def wake(self, sequence: Sequence) -> None:
        self.parked.take(sequence)

    def turn(self, sequence: Sequence) -> tuple[bool, float, int]:
        """The same for all: what runs came first."""
        return (False, 0.0, 0)

    def first_turn(self) -> tuple[bool, float, int] | None:
        return (False, 0.0, 0) if len(self) else None

    def exceeds_share(self, sequence: Sequence) -> bool:
        """Nobody has one."""
        return False

    def may_pass(self, sequence: Sequence, other: Sequence) -> bool:
        return False

    def express(self) -> Generator[Sequence, None, None]:
        """Nobody goes before those who came first."""
        yield from ()

    def of(self, holders: Collection[Holder]) -> Generator[Sequence, None, None]:
        """Nobody gives up a place to who came later."""
        yield from ()

    def heads(self) -> Iterator[Sequence]:
        yield from ()

    def keeps_share(self, tenant: Tenant, name: str) -> bool:
        return False

    def work(self) -> float:
        return self._work

    def work_before(self, sequence: Sequence) -> float:
        return self._work

    def sequences(self) -> Iterator[Sequence]:
        yield from self._again
        yield from self._line

    def waiting_of(self, tenant_key: str) -> int:
        return self._tenants[tenant_key]

    def waiting_by_tenant(self) -> dict[str, int]:
        return dict(sorted(self._tenants.items()))

    def stats(self, now_s: float) -> Iterator[QueueStats]:
        for sequence, came_s in (*self._again.items(), *self._line.items()):
            key = sequence.request.tenant.key
            yield QueueStats(sequence.service.class_name, key, 1, max(now_s - came_s, 0.0))

    def service_gaps(self) -> dict[str, float]:
        """None: nobody counts."""
        return {}

    def service_bounds(self) -> dict[str, float]:
        return {}

    def contested(self) -> dict[str, tuple[float, float]]:
        return {}

    def _entered(self, sequence: Sequence) -> None:
        self._work += sequence.service.work
        self._tenants[sequence.request.tenant.key] += 1
