"""The eviction policies by their names."""

from __future__ import annotations

from collections.abc import Callable

from tenora_engine.memory.policies.interface import EvictionPolicy
from tenora_engine.memory.policies.joint import JointPolicy
from tenora_engine.memory.policies.lru import UnifiedLRUPolicy

POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "joint": JointPolicy,
    "unified-lru": UnifiedLRUPolicy,
}


def make_policy(name: str) -> EvictionPolicy:
    """Raises ValueError for a name that is not one of POLICIES."""
    if name not in POLICIES:
        raise ValueError(f"no eviction policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]()
