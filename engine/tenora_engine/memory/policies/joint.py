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

OFTEN = 1 / 3
"""Of the paths that part at a fork: the share that returns from which one of them is worth as much
as any KV."""


class JointPolicy:
    """Expected loss per byte, in SLO-weighted seconds: weight x rate of use x time to have it
    again / bytes.

    `heat * exp(-(now - last_used) / FADE_S)` is the rate of use; so the logarithm of the loss less
    the `now / FADE_S` that is common to all is a value whose order time does not change. A KV
    block's cost is its recomputation, which grows with its depth, or its copy from a tier below if
    that takes less; an adapter's is its load. KV that was used once has no rate of its own yet: it
    is taken to be used again as seldom as other paths that parted where it did, so what every
    request adds to a system prompt goes first. What the queue needs goes last. Tenants keep to
    their shares; and while no more adapters are on the device than a batch is expected to need
    (ELORA's `Low_lora`) and one sigma, KV is not fed with adapters.
    """

    name = "joint"
    revalue_s = None
    partitioning: Partitioning = "tenant"

    def value(self, candidate: Candidate, state: MemoryState) -> float:
        loss = candidate.weight * candidate.heat * candidate.reload_s / candidate.num_bytes
        if candidate.kind == "kv" and candidate.visits == 1:
            loss *= min(candidate.returns / OFTEN, 1.0)
        value = math.log(max(loss, 1e-300)) + candidate.last_used_s / FADE_S
        return value + WANTED if candidate.wanted else value

    def defers(self, kind: Kind, demand: Kind, state: MemoryState) -> bool:
        reserve = state.expected_adapters + state.expected_adapters_sigma
        return kind == "adapter" and demand == "kv" and state.resident_adapters <= reserve
