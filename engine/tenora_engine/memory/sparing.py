"""Pages for what can do without: as many as there are until something has to go that is spared."""

from __future__ import annotations

from collections.abc import Callable

from tenora_engine.memory.evictor import Evictor, Item
from tenora_engine.memory.pool import LIVE_KV, PagePool


def allocate_sparing(
    evictor: Evictor,
    pool: PagePool,
    evict: Callable[[Item, int], None],
    namespace: str,
    count: int,
    is_spared: Callable[[Item], bool],
    owner: int = 0,
) -> list[int]:
    """At most `count` live KV pages for a namespace: free ones, and those of what is worth least
    until that is spared."""
    partitions = evictor.partitions
    partition = partitions.of(namespace, "kv")
    count = max(min(count, partitions.available(partition, count, {})), 0)
    for item, most in evictor.victims(partition, count, "kv", is_spared):
        evict(item, most)
    count = max(count - partitions.lacking(partition, count), 0)
    return pool.try_allocate(count, LIVE_KV, partition, owner) or []
