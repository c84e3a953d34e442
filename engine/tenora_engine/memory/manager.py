"""MemoryManager: gives pages to sequences and adapters, and takes back what is worth least. It ties
pool, prefix tree, adapter cache and eviction policy together; it decides nothing about order."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import PoolStats
from tenora_engine.memory.adapter_cache import AdapterCache, ResidentAdapter
from tenora_engine.memory.arena import Arena
from tenora_engine.memory.costs import CostModel
from tenora_engine.memory.eviction_queue import EvictionQueue
from tenora_engine.memory.heat import fade
from tenora_engine.memory.integrity import check_ownership
from tenora_engine.memory.policies import make_policy
from tenora_engine.memory.policies.interface import Candidate, EvictionPolicy, MemoryState
from tenora_engine.memory.pool import ADAPTER, CACHED_KV, FREE, LIVE_KV, IntegrityError, PagePool
from tenora_engine.memory.prefix import BASE, PrefixNode, PrefixTree, encode_tokens
from tenora_engine.sequence import Sequence
from tenora_kernels.segments import BASE_SLOT


class MemoryManager:
    """All pages of one arena.

    `enter` and `leave` bracket a sequence's life; `try_admit` and `release` bracket each time it
    runs, `release` keeping its full blocks as cache.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        arena: Arena,
        policy: EvictionPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._block_tokens = config.engine.block_tokens
        self._policy = policy or make_policy(config.engine.eviction_policy)
        self._clock = clock
        self._queue: EvictionQueue[PrefixNode | ResidentAdapter] = EvictionQueue()
        self.costs = CostModel(config)
        self.pool = PagePool(config.num_pages)
        self.tree = PrefixTree(
            self.pool, self._block_tokens, self._offer_node, self._queue.withdraw, fade
        )
        self.adapters = AdapterCache(
            config, arena, self.pool, self._offer_adapter, self._queue.withdraw, fade
        )
        self.kv_evictions = 0
        self.adapter_evictions = 0

    @property
    def available_pages(self) -> int:
        """Pages that are free or could be made so."""
        return (
            self.pool.num_free + self.pool.count(CACHED_KV) + self.adapters.evictable_pages
        )  # every cached page can go: the descendants of an unreferenced node are unreferenced

    @property
    def can_have_slot(self) -> bool:
        """Whether an adapter slot is free or could be made so."""
        return self.adapters.has_free_slot or any(
            not resident.references for resident in self.adapters.residents()
        )

    def blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)

    def enter(self, sequence: Sequence) -> None:
        """A new sequence: it keeps its prefix root, purged or not, until `leave`."""
        request = sequence.request
        digest = BASE if request.adapter is None else request.adapter.digest
        sequence.prefix_root = self.tree.enter(request.tenant.namespace, digest)

    def leave(self, sequence: Sequence) -> None:
        """The sequence has ended and holds no pages any more."""
        if sequence.prefix_root is not None:
            self.tree.leave(sequence.prefix_root)
            sequence.prefix_root = None

    def try_admit(
        self,
        sequence: Sequence,
        resident: ResidentAdapter | None,
        packed: PackedAdapter | None,
        load_ms: float,
        reserve: int,
    ) -> bool:
        """Pages for all tokens of a waiting sequence, its cached prefix taken over and its adapter
        held; `packed` is installed first when it is not resident yet. False, and nothing changed,
        unless `reserve` pages would still be available afterwards."""
        nodes = self._match(sequence)
        needed = self.blocks(len(sequence.token_ids)) - len(nodes)
        available = self.available_pages - sum(1 for node in nodes if not node.references)
        if resident is not None and not resident.references:
            available -= len(resident.pages)
        if needed + reserve + (packed.num_pages if packed is not None else 0) > available:
            return False
        now_s = self._clock()
        self.tree.pin(nodes, now_s)
        if packed is not None:
            resident = self._install(sequence, packed, load_ms, now_s)
        if resident is not None:
            self.adapters.acquire(resident, now_s)
            sequence.adapter_slot = resident.slot
        sequence.prefix_nodes = nodes
        pages = [node.page for node in nodes] + self._allocate(needed, LIVE_KV)
        sequence.block_table = array("i", pages)
        sequence.num_computed = len(nodes) * self._block_tokens
        return True

    def try_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Pages for the KV of the sequence's first `num_tokens` tokens, evicting as needed."""
        pages = self.try_allocate(self.blocks(num_tokens) - len(sequence.block_table), LIVE_KV)
        if pages is None:
            return False
        sequence.block_table.extend(pages)
        return True

    def try_allocate(self, count: int, kind: int) -> list[int] | None:
        """`count` pages, at the cost of what is worth least; None when even that is not enough."""
        if count > self.available_pages:
            return None
        return self._allocate(max(count, 0), kind)

    def cache_blocks(self, sequence: Sequence) -> None:
        """Hand the blocks that have been computed in full to the prefix tree."""
        nodes, size = sequence.prefix_nodes, self._block_tokens
        full = sequence.num_computed // size
        root = sequence.prefix_root
        if full <= len(nodes) or root is None or not self._config.engine.prefix_caching:
            return
        now_s = self._clock()
        for number in range(len(nodes), full):
            key = encode_tokens(sequence.token_ids[number * size : (number + 1) * size])
            page = sequence.block_table[number]
            node = self.tree.insert(root, nodes[-1] if nodes else None, key, page, now_s)
            if node.page != page:  # another sequence was first with this block: share its page
                self.pool.release((page,))
                sequence.block_table[number] = node.page
            nodes.append(node)

    def release(self, sequence: Sequence) -> None:
        """Take a running sequence's pages and its hold on the adapter. What the prefix tree has
        of it stays cached."""
        now_s = self._clock()
        nodes = sequence.prefix_nodes
        self.tree.unpin(nodes, now_s)
        self.pool.release(sequence.block_table[len(nodes) :])
        sequence.prefix_nodes = []
        sequence.block_table = array("i")
        sequence.num_computed = 0
        sequence.encoded = b""
        adapter = sequence.request.adapter
        if adapter is not None and sequence.adapter_slot != BASE_SLOT:
            resident = self.adapters.get(adapter.digest)
            if resident is None:
                raise IntegrityError(f"adapter {adapter.digest} was evicted while in use")
            self.adapters.release(resident, now_s)
            sequence.adapter_slot = BASE_SLOT

    def drop_adapter(self, digest: str) -> None:
        """Evict an adapter that nobody uses, if it is resident."""
        resident = self.adapters.get(digest)
        if resident is not None:
            self.adapters.evict(resident)

    def pool_stats(self, running: Collection[Sequence]) -> PoolStats:
        """`running`: the sequences that hold pages."""
        live: Counter[str] = Counter()
        cached: Counter[str] = Counter()
        for root in self.tree.roots():
            live[root.namespace] += root.live_pages
            cached[root.namespace] += root.cached_pages
        for sequence in running:
            own = len(sequence.block_table) - len(sequence.prefix_nodes)
            live[sequence.request.tenant.namespace] += own
        pool = self.pool
        return PoolStats(
            total_pages=pool.total,
            page_bytes=self._config.page_bytes,
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

    def check_integrity(self, running: Collection[Sequence]) -> None:
        """Raises IntegrityError unless free + live_kv + cached_kv + adapter == total and each used
        page has exactly one owner. O(pages)."""
        self.pool.check()
        self.adapters.check()
        check_ownership(self.pool, self.tree, self.adapters, running)
        candidates = sum(1 for item in self.adapters.residents() if not item.references)
        candidates += sum(1 for root in self.tree.roots() for _ in root.evictable())
        if candidates != len(self._queue):
            raise IntegrityError(
                f"{len(self._queue)} candidates for eviction are queued, there are {candidates}"
            )

    def _match(self, sequence: Sequence) -> list[PrefixNode]:
        if sequence.prefix_root is None or not self._config.engine.prefix_caching:
            return []
        if not sequence.encoded:
            sequence.encoded = encode_tokens(sequence.token_ids)
        return self.tree.match(sequence.prefix_root, sequence.encoded)

    def _install(
        self, sequence: Sequence, packed: PackedAdapter, load_ms: float, now_s: float
    ) -> ResidentAdapter:
        if not self.adapters.has_free_slot:
            unused = [item for item in self.adapters.residents() if not item.references]
            self._evict(min(unused, key=self._value))
        pages = self._allocate(packed.num_pages, ADAPTER)
        namespace = sequence.request.tenant.namespace
        return self.adapters.install(packed, pages, load_ms, now_s, namespace)

    def _allocate(self, count: int, kind: int) -> list[int]:
        while self.pool.num_free < count:
            self._evict(self._queue.pop())
        pages = self.pool.try_allocate(count, kind)
        if pages is None:
            raise IntegrityError("eviction did not free the pages it promised")
        return pages

    def _evict(self, item: PrefixNode | ResidentAdapter) -> None:
        if isinstance(item, PrefixNode):
            self.tree.evict(item)
            self.kv_evictions += 1
        else:
            self.adapters.evict(item)
            self.adapter_evictions += 1

    def _offer_node(self, node: PrefixNode) -> None:
        self._queue.offer(node, self._value(node))

    def _offer_adapter(self, resident: ResidentAdapter) -> None:
        self._queue.offer(resident, self._value(resident))

    def _value(self, item: PrefixNode | ResidentAdapter) -> float:
        return self._policy.value(self._candidate(item), self._state())

    def _candidate(self, item: PrefixNode | ResidentAdapter) -> Candidate:
        if isinstance(item, PrefixNode):
            digest = item.root.digest
            return Candidate(
                kind="kv",
                namespace=item.root.namespace,
                num_bytes=self._config.page_bytes,
                last_used_s=item.last_used_s,
                heat=item.heat,
                visits=item.visits,
                recompute_s=self.costs.block_s(item.depth),
                adapter_resident=digest == BASE or self.adapters.get(digest) is not None,
            )
        num_bytes = len(item.pages) * self._config.page_bytes
        return Candidate(
            kind="adapter",
            namespace=item.namespace,
            num_bytes=max(num_bytes, 1),
            last_used_s=item.last_used_s,
            heat=item.heat,
            visits=item.visits,
            fetch_s=self.costs.adapter_s(num_bytes),
            wanted=self.adapters.is_wanted(item.digest),
        )

    def _state(self) -> MemoryState:
        pool, page_bytes = self.pool, self._config.page_bytes
        return MemoryState(
            now_s=self._clock(),
            capacity_bytes=pool.total * page_bytes,
            kv_bytes=(pool.count(LIVE_KV) + pool.count(CACHED_KV)) * page_bytes,
            adapter_bytes=pool.count(ADAPTER) * page_bytes,
            resident_adapters=self.adapters.num_residents,
        )
