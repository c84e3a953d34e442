"""FairQueue: what waits, by tenant, and whose turn it is. It knows neither memory nor adapters."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Set
from itertools import count, islice

from tenora_engine.errors import QueueFullError
from tenora_engine.request import Tenant
from tenora_engine.sequence import Sequence

DECODE_COST = 2.0
"""A decoded token costs as much as two prefilled ones, as in VTC."""

TENANT_WINDOW = 64
"""How far `candidates` looks past a tenant's blocked sequences in one call."""

_TENANTS_KEPT = 4096


class _TenantQueue:
    __slots__ = ("counter", "turn", "waiting", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.counter = 0.0
        self.turn = 0
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()


class FairQueue:
    """Waiting sequences, at most `limit`; tenants in the order of their virtual counters.

    Virtual token counters (VTC: Sheng et al., "Fairness in serving large language models", OSDI
    2024): a tenant is charged its prefill and twice its decode tokens over its weight, and the one
    with the least counter goes first. A tenant that returns is lifted to the least counter of
    those that wait, so that it cannot save up service by being away.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tenants: dict[str, _TenantQueue] = {}
        self._waiting_tenants: dict[str, _TenantQueue] = {}
        self._turns = count(1)
        self._floor = 0.0  # counter of the tenant that left the queue last
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, sequence: Sequence) -> bool:
        queue = self._tenants.get(sequence.request.tenant.key)
        return queue is not None and sequence in queue.waiting

    def check_room(self, num_sequences: int, held: int = 0) -> None:
        """Raises QueueFullError unless `num_sequences` more may wait beside `held` others."""
        if self._size + held + num_sequences > self._limit:
            raise QueueFullError(
                f"{self._size + held} sequences wait and {num_sequences} more would exceed the "
                f"limit of {self._limit}; try again later"
            )

    def push(self, sequence: Sequence) -> None:
        """To the tail of its tenant's queue. The caller has asked `check_room`."""
        self._enter(sequence.request.tenant).waiting[sequence] = None
        self._size += 1

    def push_front(self, sequence: Sequence) -> None:
        """To the head of its tenant's queue: it has run before, or its first sequence has."""
        queue = self._enter(sequence.request.tenant)
        queue.waiting[sequence] = None
        queue.waiting.move_to_end(sequence, last=False)
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        """Take out a waiting sequence, to run it or because it was aborted. O(1)."""
        key = sequence.request.tenant.key
        queue = self._tenants[key]
        del queue.waiting[sequence]
        self._size -= 1
        if not queue.waiting:
            del self._waiting_tenants[key]
            self._floor = queue.counter

    def charge_prefill(self, tenant: Tenant, num_tokens: int) -> None:
        self._charge(tenant, num_tokens)

    def charge_decode(self, tenant: Tenant, num_tokens: int) -> None:
        self._charge(tenant, DECODE_COST * num_tokens)

    def counter(self, tenant_key: str) -> float:
        """The tenant's virtual counter; 0 for one that is not known (any more)."""
        queue = self._tenants.get(tenant_key)
        return 0.0 if queue is None else queue.counter

    def candidates(self) -> Iterator[Sequence]:
        """Waiting sequences in fair order. The caller may remove the one it was just given (and
        charge its tenant) before it asks for the next; what it leaves is blocked and passed
        over; so is what leaves the queue by other ways meanwhile."""
        heap = [(q.counter, q.turn, key) for key, q in self._waiting_tenants.items()]
        heapq.heapify(heap)
        lines: dict[str, Iterator[Sequence]] = {}
        while heap:
            counter, turn, key = heapq.heappop(heap)
            queue = self._tenants[key]
            if queue.counter > counter:
                heapq.heappush(heap, (queue.counter, turn, key))
                continue
            line = lines.get(key)
            if line is None:
                line = lines[key] = iter(list(islice(queue.waiting, TENANT_WINDOW)))
            sequence = next((item for item in line if item in queue.waiting), None)
            if sequence is not None:
                heapq.heappush(heap, (counter, turn, key))
                yield sequence

    def sequences(self) -> Iterator[Sequence]:
        """Everything that waits, in no particular order of tenants."""
        for queue in self._waiting_tenants.values():
            yield from queue.waiting

    @property
    def waiting_tenants(self) -> Set[str]:
        return self._waiting_tenants.keys()

    def waiting_by_tenant(self) -> dict[str, int]:
        return {key: len(queue.waiting) for key, queue in self._waiting_tenants.items()}

    def _enter(self, tenant: Tenant) -> _TenantQueue:
        queue = self._tenants.get(tenant.key)
        if queue is None:
            self._forget_the_idle()
            queue = self._tenants[tenant.key] = _TenantQueue(tenant.weight)
        queue.weight = tenant.weight
        if not queue.waiting:
            queue.counter = max(queue.counter, self._least_counter())
            queue.turn = next(self._turns)
            self._waiting_tenants[tenant.key] = queue
        return queue

    def _least_counter(self) -> float:
        return min((q.counter for q in self._waiting_tenants.values()), default=self._floor)

    def _charge(self, tenant: Tenant, cost: float) -> None:
        queue = self._tenants.get(tenant.key)
        if queue is not None:
            queue.counter += cost / tenant.weight

    def _forget_the_idle(self) -> None:
        """Tenants who would be lifted anyway when they return need not be remembered."""
        if len(self._tenants) < _TENANTS_KEPT:
            return
        least = self._least_counter()
        self._tenants = {
            key: queue
            for key, queue in self._tenants.items()
            if queue.waiting or queue.counter > least
        }
