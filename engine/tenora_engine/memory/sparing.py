"""Pages for what can do without: as many as there are until something has to go that is spared."""

from __future__ import annotations

from collections.abc import Callable

from tenora_engine.memory.evictor import Evictor, Item
from tenora_engine.memory.pool import LIVE_KV, PagePool


def allocate_sparing(
    evictor: Evictor,
    pool: PagePool,
    evict: Callable[[Item], None],
    namespace: str,
    count: int,
    is_spared: Callable[[Item], bool],
) -> list[int]:
    """At most `count` live KV pages for a namespace: free ones, and those of what is worth least
    until that is spared."""
    partitions = evictor.partitions
    partition = partitions.of(namespace, "kv")
    count = min(count, partitions.available(partition, count, {}))
    pages: list[int] = []
    while len(pages) < count:
        if partitions.lacks(partition, 1):
            victim = next(evictor.victims(partition, 1, "kv"))
            if is_spared(victim):
                break
            evict(victim)
        else:
            pages += pool.try_allocate(1, LIVE_KV, partition) or ()
    return pages
