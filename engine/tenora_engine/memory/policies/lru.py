"""The simple baselines: least recently used first."""

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
        return candidate.last_used_s + (WANTED if candidate.wanted else 0.0)

    def defers(self, kind: Kind, demand: Kind, state: MemoryState) -> bool:
        return False
