"""Chameleon's score (Iliakopoulou et al., MICRO 2025)."""

from __future__ import annotations

from tenora_engine.memory.policies.interface import (
    WANTED,
    Candidate,
    Kind,
    MemoryState,
    Partitioning,
)

FREQUENCY, RECENCY, SIZE = 0.45, 0.10, 0.45


class ChameleonPolicy:
    """`0.45 frequency + 0.10 recency + 0.45 size`, the lowest first; adapters that the queue needs
    are spared.

    Frequency and size are parts of the largest seen; recency is `1 / (1 + seconds since the last
    use)`. The paper caches adapters alone: here cached KV has the same score, and a block, small
    beside an adapter, mostly goes first.
    """

    name = "chameleon"
    revalue_s = 1.0
    partitioning: Partitioning = "none"

    def value(self, candidate: Candidate, state: MemoryState) -> float:
        since_s = max(state.now_s - candidate.last_used_s, 0.0)
        score = (
            FREQUENCY * candidate.visits / state.most_visits
            + RECENCY / (1.0 + since_s)
            + SIZE * candidate.num_bytes / state.most_bytes
        )
        return score + WANTED if candidate.kind == "adapter" and candidate.wanted else score

    def defers(self, kind: Kind, demand: Kind, state: MemoryState) -> bool:
        return False
