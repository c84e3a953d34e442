"""Eviction policies: what one is asked, what it is told (candidates by their use and their cost,
and the memory as a whole), and those there are. They know neither trees nor slots nor pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from tenora_engine.config import PolicyName
from tenora_engine.memory.costs import FADE_S

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
    heat: float  # uses, faded with time up to `last_used_s` (see `costs.fade`)
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


OFTEN = 1 / 3
"""Of the paths that part at a fork: the share that returns from which one of them is worth as much
as any KV."""


class JointPolicy:
    """Ours: expected loss per byte, in SLO-weighted seconds: weight x rate of use x time to have
    it again / bytes.

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


FREQUENCY, RECENCY, SIZE = 0.45, 0.10, 0.45  # of Chameleon's score


class ChameleonPolicy:
    """Chameleon's score (Iliakopoulou et al., MICRO 2025):
    `0.45 frequency + 0.10 recency + 0.45 size`, the lowest first; adapters that the queue needs
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


class EloraPolicy:
    """ELORA's policy by its formulas (Shi et al., HPCA 2026; FastLibra, arXiv 2505.03756):
    `Eval = LoRA_Eval * Retain_Eval`, ascending, with
    `LoRA_Eval = min(1, Now_lora / Low_lora)` and
    `Retain_Eval_i = cost_i * visit_i * (1 - sigmoid(t_i))`.

    An adapter with KV is no leaf of its tree and goes after all leaves. The value is the logarithm
    of Eval: `1 - sigmoid(t)` underflows after some minutes. `cost_i` is bytes over the link's
    bandwidth, whose logarithm is common to all and left out; `t_i` is taken in seconds, which the
    paper does not say. Its loop runs every 100 ms. Its swap-in below 70% use is left out: a
    device that was full once stays so, since freed sequences leave their KV cached.
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


POLICIES: dict[PolicyName, Callable[[], EvictionPolicy]] = {
    "joint": JointPolicy,
    "static-lru": StaticLRUPolicy,
    "unified-lru": UnifiedLRUPolicy,
    "kv-first": KVFirstPolicy,
    "elora": EloraPolicy,
    "chameleon": ChameleonPolicy,
}


def make_policy(name: str) -> EvictionPolicy:
    """Raises ValueError for a name that is not one of POLICIES."""
    if name not in POLICIES:
        raise ValueError(f"unknown eviction policy {name!r}; use one of {', '.join(POLICIES)}")
    return POLICIES[name]()
