"""The simple baselines: least recently used first. An adapter that the queue needs goes last."""

from __future__ import annotations

from tenora_engine.memory.policies.interface import (
    WANTED,
    Candidate,
    Kind,
    MemoryState,
    Partitioning,
)


class UnifiedLRUPolicy:
    """Least recently used first, whatever it is."""

    name = "unified-lru"
    revalue_s = None
    partitioning: Partitioning = "none"

    def value(self, candidate: Candidate, state: MemoryState) -> float:
        wanted = candidate.kind == "adapter" and candidate.wanted
        return candidate.last_used_s + (WANTED if wanted else 0.0)

    def defers(self, kind: Kind, demand: Kind, state: MemoryState) -> bool:
        return False


class StaticLRUPolicy(UnifiedLRUPolicy):
    """A fixed part of the arena for adapters, the rest for KV; least recently used first in each.
    An arena of one page has no parts."""

    name = "static-lru"
    partitioning: Partitioning = "kind"


class KVFirstPolicy(UnifiedLRUPolicy):
    """All cached KV before any adapter; least recently used first of each kind."""

    name = "kv-first"

    def defers(self, kind: Kind, demand: Kind, state: MemoryState) -> bool:
        return kind == "adapter"
