"""ELORA's policy by its formulas (Shi et al., HPCA 2026; FastLibra, arXiv 2505.03756)."""

from __future__ import annotations

import math

from tenora_engine.memory.policies.interface import (
    WANTED,
    Candidate,
    Kind,
    MemoryState,
    Partitioning,
)


class EloraPolicy:
    """`Eval = LoRA_Eval * Retain_Eval`, ascending, with
    `LoRA_Eval = min(1, Now_lora / Low_lora)` and
    `Retain_Eval_i = cost_i * visit_i * (1 - sigmoid(t_i))`.

    An adapter with KV is no leaf of its tree and goes after all leaves. The value is the logarithm
    of Eval: `1 - sigmoid(t)` underflows after some minutes. `cost_i` is bytes over the link's
    bandwidth, whose logarithm is common to all and left out; `t_i` is taken in seconds, which the
    paper does not say. Its loop runs every 100 ms; it fetches nothing ahead below 70% use, since
    what was evicted once from a full device leaves it full.
    """

    name = "elora"
    revalue_s = 0.1
    partitioning: Partitioning = "none"

    def value(self, candidate: Candidate, state: MemoryState) -> float:
        low = state.expected_adapters
        lora_eval = min(1.0, max(state.resident_adapters, 1) / low) if low > 0 else 1.0
        since_s = state.now_s - candidate.last_used_s
        log_retain = math.log(candidate.num_bytes * candidate.visits) + _log_unlike(since_s)
        value = math.log(lora_eval) + log_retain
        return value + WANTED if candidate.bears_kv else value

    def defers(self, kind: Kind, demand: Kind, state: MemoryState) -> bool:
        return False


def _log_unlike(x: float) -> float:
    """log(1 - sigmoid(x)), for any x."""
    return -(max(x, 0.0) + math.log1p(math.exp(-abs(x))))
