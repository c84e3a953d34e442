"""What to give up first when pages are needed: cached KV leaves and unreferenced adapters compete
for the same pages, and a policy puts a value on each. It knows neither trees nor slots."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar


@dataclass(frozen=True)
class Candidate:
    """Something that could be given up. `reload_s` is what it would take to have it again."""

    kind: Literal["kv", "adapter"]
    num_bytes: int
    last_used_s: float
    heat: float  # uses, faded with time up to `last_used_s`
    reload_s: float
    wanted: bool = False  # a request in the queue needs it


class EvictionPolicy(Protocol):
    """Values candidates; the lowest goes first. The *order* of two values must not change as time
    passes, so that a candidate is valued once, when it becomes one."""

    @property
    def name(self) -> str: ...

    def value(self, candidate: Candidate) -> float: ...


FADE_S = 60.0
"""Time in which a use loses 63% of its weight."""

_WANTED = 1e12  # above any value: what the queue needs goes last


def fade(seconds: float) -> float:
    """How much of a use is left after `seconds`."""
    return math.exp(-seconds / FADE_S)


class JointPolicy:
    """Expected loss per byte: rate of use x time to have it again / bytes.

    The rate is a count of uses that fades exponentially (LRFU: Lee et al., 2001), so
    `heat * exp(-(now - last_used) / FADE_S) * reload_s / bytes` is the loss a byte now; its
    logarithm less the `now / FADE_S` that is common to all is the value, whose order time does
    not change. A KV block's `reload_s` is its recomputation, which grows with its depth; an
    adapter's is its load, a few times less a byte: neither kind is given up on principle.
    Left out of the full policy so far: shares of tenants, the discount of KV whose adapter is
    away, tiers below the device for KV.
    """

    name = "joint"

    def value(self, candidate: Candidate) -> float:
        loss_per_byte = candidate.heat * candidate.reload_s / candidate.num_bytes
        value = math.log(max(loss_per_byte, 1e-300)) + candidate.last_used_s / FADE_S
        return value + _WANTED if candidate.wanted else value


class UnifiedLRUPolicy:
    """The simple baseline: least recently used first, whatever it is."""

    name = "unified-lru"

    def value(self, candidate: Candidate) -> float:
        return candidate.last_used_s + (_WANTED if candidate.wanted else 0.0)


class Evictable(Protocol):
    """`ticket` belongs to the EvictionQueue: 0, or the number of the entry that counts."""

    ticket: int


ItemT = TypeVar("ItemT", bound=Evictable)


class EvictionQueue(Generic[ItemT]):
    """Candidates by value: a heap whose outdated entries are dropped when they surface, and swept
    when they outnumber the others, so its size is bounded by that of the candidates."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ItemT]] = []
        self._next_ticket = 1
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def offer(self, item: ItemT, value: float) -> None:
        """Add a candidate, or value it anew."""
        if not item.ticket:
            self._size += 1
        item.ticket = self._next_ticket
        self._next_ticket += 1
        heapq.heappush(self._heap, (value, item.ticket, item))
        if len(self._heap) > 2 * self._size + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)

    def withdraw(self, item: ItemT) -> None:
        """It is no candidate any more."""
        if item.ticket:
            item.ticket = 0
            self._size -= 1

    def pop(self) -> ItemT:
        """The candidate of least value, taken out. Raises IndexError when there is none."""
        while True:
            _, ticket, item = heapq.heappop(self._heap)
            if item.ticket == ticket:
                self.withdraw(item)
                return item
