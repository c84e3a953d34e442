"""Our policy: expected loss per byte."""

from __future__ import annotations

import math

from tenora_engine.memory.heat import FADE_S
from tenora_engine.memory.policies.interface import (
    WANTED,
    Candidate,
    Kind,
    MemoryState,
    Partitioning,
)


class JointPolicy:
    """Expected loss per byte: rate of use x time to have it again / bytes.

    `heat * exp(-(now - last_used) / FADE_S) * reload_s / bytes` is the loss a byte now; its
    logarithm less the `now / FADE_S` that is common to all is the value, whose order time does
    not change. A KV block's `reload_s` is its recomputation, which grows with its depth; an
    adapter's is its load, a few times less a byte: neither kind is given up on principle.
    """

    name = "joint"
    revalue_s = None
    partitioning: Partitioning = "none"

    def value(self, candidate: Candidate, state: MemoryState) -> float:
        loss_per_byte = candidate.heat * candidate.reload_s / candidate.num_bytes
        value = math.log(max(loss_per_byte, 1e-300)) + candidate.last_used_s / FADE_S
        return value + WANTED if candidate.wanted else value

    def defers(self, kind: Kind, demand: Kind, state: MemoryState) -> bool:
        return False
