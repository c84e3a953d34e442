"""The eviction policies by their names."""

from __future__ import annotations

from collections.abc import Callable

from tenora_engine.config import PolicyName
from tenora_engine.memory.policies.chameleon import ChameleonPolicy
from tenora_engine.memory.policies.elora import EloraPolicy
from tenora_engine.memory.policies.interface import EvictionPolicy
from tenora_engine.memory.policies.joint import JointPolicy
from tenora_engine.memory.policies.lru import KVFirstPolicy, StaticLRUPolicy, UnifiedLRUPolicy

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
        raise ValueError(f"no eviction policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]()
