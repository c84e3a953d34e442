"""What the pages of the arena hold now, by kind and tenant: for dashboards and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tenora_engine.events import PoolStats
from tenora_engine.memory.kv_fetches import KVFetch
from tenora_engine.memory.pool import ADAPTER, CACHED_KV, FREE, LIVE_KV, PagePool
from tenora_engine.memory.prefix import PrefixTree, num_blocks
from tenora_engine.sequence import Sequence


def pool_stats(
    pool: PagePool,
    page_bytes: int,
    tree: PrefixTree,
    fetches: Iterable[KVFetch],
    running: Iterable[Sequence],
) -> PoolStats:
    """`running`: the sequences that hold pages. O(pages)."""
    live: Counter[str] = Counter()
    cached: Counter[str] = Counter()
    for root in tree.roots():
        live[root.namespace] += root.live_pages
        cached[root.namespace] += root.cached_pages
    for sequence in running:
        own = len(sequence.block_table) - num_blocks(sequence.prefix_end)
        live[sequence.request.tenant.namespace] += own
    for fetch in fetches:
        live[fetch.root.namespace] += len(fetch.pages)
    return PoolStats(
        total_pages=pool.total,
        page_bytes=page_bytes,
        free_pages=pool.count(FREE),
        live_kv_pages=pool.count(LIVE_KV),
        cached_kv_pages=pool.count(CACHED_KV),
        adapter_pages=pool.count(ADAPTER),
        tenants={
            name: {"live_kv": live[name], "cached_kv": cached[name]}
            for name in sorted({*live, *cached})
        },
        page_map=pool.page_map(),
    )
