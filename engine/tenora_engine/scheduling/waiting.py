"""WaitingQueue: what the rest of the scheduling asks of a queue, and the one in order of arrival.
The one by classes and tenants is `queue.FairQueue`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Protocol

from tenora_engine.request import Tenant
from tenora_engine.scheduling.queue import Turn
from tenora_engine.sequence import Sequence
from tenora_engine.telemetry import QueueStats


class WaitingQueue(Protocol):
    """What waits, and whose turn it is; each method as in `queue.FairQueue`. `lets_pass`: whether
    who comes later may start before one that finds no pages."""

    lets_pass: bool

    def __len__(self) -> int: ...
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
    def candidates(self) -> Generator[Sequence, None, None]: ...
    def turn(self, sequence: Sequence) -> Turn: ...
    def first_turn(self) -> Turn | None: ...
    def exceeds_share(self, sequence: Sequence) -> bool: ...
    def may_pass(self, sequence: Sequence, other: Sequence) -> bool: ...
    def express(self) -> Generator[Sequence, None, None]: ...
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


class ArrivalQueue:
    """First come, first served, whoever asks: the order that others are measured against."""

    lets_pass = False

    def __init__(self) -> None:
        # When each came to wait.
        self._line: dict[Sequence, float] = {}
        self._again: dict[Sequence, float] = {}  # goes before the line, the latest first
        self._tenants: Counter[str] = Counter()
        self._work = 0.0

    def __len__(self) -> int:
        return len(self._line) + len(self._again)

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
        del (self._line if sequence in self._line else self._again)[sequence]
        self._work = self._work - sequence.work if len(self) else 0.0
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

    def candidates(self) -> Generator[Sequence, None, None]:
        """See `FairQueue.candidates`. O(n) for the list."""
        for sequence in [*reversed(self._again), *self._line]:
            if sequence in self:
                yield sequence

    def turn(self, sequence: Sequence) -> Turn:
        """The same for all: what runs came first."""
        return (False, 0.0, 0)

    def first_turn(self) -> Turn | None:
        return (False, 0.0, 0) if len(self) else None

    def exceeds_share(self, sequence: Sequence) -> bool:
        """Nobody has one."""
        return False

    def may_pass(self, sequence: Sequence, other: Sequence) -> bool:
        return False

    def express(self) -> Generator[Sequence, None, None]:
        """Nobody goes before those who came first."""
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
            yield QueueStats(sequence.service_class, key, 1, max(now_s - came_s, 0.0))

    def service_gaps(self) -> dict[str, float]:
        """None: nobody counts."""
        return {}

    def service_bounds(self) -> dict[str, float]:
        return {}

    def contested(self) -> dict[str, tuple[float, float]]:
        return {}

    def _entered(self, sequence: Sequence) -> None:
        self._work += sequence.work
        self._tenants[sequence.request.tenant.key] += 1
