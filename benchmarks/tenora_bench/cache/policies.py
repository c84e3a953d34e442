"""Policies by the names of CONTRACT.md."""

from __future__ import annotations

from collections.abc import Callable

from tenora_bench.client import BenchError
from tenora_engine.memory.policy import EvictionPolicy, JointPolicy, UnifiedLRUPolicy

POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "joint": JointPolicy,
    "unified-lru": UnifiedLRUPolicy,
}


def choose(names: str) -> dict[str, Callable[[], EvictionPolicy]]:
    """Comma-separated names. Raises BenchError for one that is not known."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in POLICIES]
    if unknown or not chosen:
        raise BenchError(f"no policy {', '.join(unknown)}; there are {', '.join(POLICIES)}")
    return {name: POLICIES[name] for name in chosen}
