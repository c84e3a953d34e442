"""What an eviction policy is asked, and what it is told: candidates by their use and their cost,
and the memory as a whole. It knows neither trees nor slots nor pages."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import msgspec

Kind = Literal["kv", "adapter"]

Partitioning = Literal["none", "kind", "tenant", "strict"]
"""Who shares memory with whom: all with all; KV and adapters apart; tenants by the minimum and
maximum of their shares; each tenant for itself alone."""

WANTED = 1e12
"""Above any value: what a policy adds for that which the queue needs."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A leaf of cached KV, or an adapter, that nobody uses and that could be given up."""

    kind: Kind
    namespace: str  # of the tenant it belongs to; an adapter's: of who had it loaded
    num_bytes: int
    last_used_s: float
    heat: float  # uses, faded with time up to `last_used_s` (see `heat.fade`)
    visits: int = 1  # uses in all since it came
    fetch_s: float = math.inf  # to copy it from the next tier; inf: no tier has it
    recompute_s: float = math.inf  # to compute it anew; inf: an adapter
    weight: float = 1.0  # SLO weight of its tenant
    bears_kv: bool = False  # of an adapter: whether KV that it computed is cached
    returns: float = 1.0  # of KV: further uses of a path that parted where this one did
    wanted: bool = False  # a waiting request needs it

    @property
    def reload_s(self) -> float:
        """What it would take to have it again."""
        return min(self.fetch_s, self.recompute_s)


class MemoryState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The memory at one moment."""

    now_s: float
    capacity_bytes: int
    kv_bytes: int = 0  # live and cached
    adapter_bytes: int = 0
    resident_adapters: int = 0
    expected_adapters: float = 0.0  # distinct ones in a batch: ELORA's Low_lora
    expected_adapters_sigma: float = 0.0
    most_visits: int = 1  # of any candidate so far
    most_bytes: int = 1


class EvictionPolicy(Protocol):
    """Values candidates; the lowest goes first.

    A candidate is valued when it becomes one, and when the queue starts or stops to want it.
    `revalue_s` says how often all must be valued anew beside that; None: time does not change the
    *order* of two values.
    """

    @property
    def name(self) -> str: ...

    @property
    def revalue_s(self) -> float | None: ...

    @property
    def partitioning(self) -> Partitioning: ...

    def value(self, candidate: Candidate, state: MemoryState) -> float: ...

    def defers(self, kind: Kind, demand: Kind, state: MemoryState) -> bool:
        """Whether candidates of `kind` wait, for a demand of pages for `demand`, until there are
        none of the other kind, whatever the values."""
        ...
