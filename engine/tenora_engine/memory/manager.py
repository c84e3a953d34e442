"""MemoryManager: gives pages to sequences and adapters, and takes back what is worth least. It ties
pool, prefix tree, adapter cache and eviction policy together; it decides nothing about order."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import PoolStats
from tenora_engine.memory.adapter_arrivals import AT_ONCE_BYTES, MAX_ARRIVALS, AdapterArrivals
from tenora_engine.memory.adapter_cache import AdapterCache, Key, ResidentAdapter
from tenora_engine.memory.adapter_slots import AdapterSlots
from tenora_engine.memory.appraiser import Appraiser
from tenora_engine.memory.arena import Arena
from tenora_engine.memory.competition import Competition
from tenora_engine.memory.costs import CostModel, fade, slo_weight
from tenora_engine.memory.evictor import Evictor, Item
from tenora_engine.memory.host_kv import HostKV
from tenora_engine.memory.inspection import (
    PageView,
    check_candidates,
    check_ownership,
    pool_stats,
    take_view,
)
from tenora_engine.memory.kv_fetches import KVFetches
from tenora_engine.memory.page_copier import MakeCopier, PageCopier, ThreadPageCopier
from tenora_engine.memory.partitions import Partition
from tenora_engine.memory.pinning import Pinning
from tenora_engine.memory.policies import EvictionPolicy, Kind, make_policy
from tenora_engine.memory.pool import ADAPTER, LIVE_KV, IntegrityError, PagePool
from tenora_engine.memory.prefix import (
    BASE,
    TOKEN_BYTES,
    PrefixNode,
    PrefixTree,
    encode_tokens,
    num_blocks,
    pages_to,
    path,
)
from tenora_engine.memory.room import can_admit
from tenora_engine.memory.sparing import allocate_sparing
from tenora_engine.pace import Pace
from tenora_engine.request import GenerationRequest, Tenant
from tenora_engine.sequence import Sequence
from tenora_kernels.segments import BASE_SLOT


class MemoryManager:
    """All pages of one arena.

    `register` precedes a tenant's requests; `enter` and `leave` bracket a sequence's life;
    `try_admit` and `release` bracket each time it runs, `release` keeping its full blocks as cache.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        arena: Arena,
        policy: EvictionPolicy | None = None,
        clock: Callable[[], float] = time.time,
        copier: MakeCopier = ThreadPageCopier,
        pace: Pace | None = None,
        at_once_bytes: float = AT_ONCE_BYTES,
    ) -> None:
        """`copier` makes what copies host pages to those of the arena. Adapters of more than
        `at_once_bytes` are copied beside the steps, at `pace`. Raises ValueError for an eviction
        policy that does not exist, or not strictly."""
        self._config = config
        self._block_tokens = config.engine.block_tokens
        self._clock = clock
        self.costs = CostModel(config)
        # What eviction goes by: in strict mode it never learns, so that no tenant's load shows in
        # what another's pages are worth.
        values = CostModel(config) if config.engine.strict_isolation else self.costs
        self.pool = PagePool(config.num_pages)
        policy = policy or make_policy(config.engine.eviction_policy)
        evictor = self._evictor = Evictor(
            config, policy, self.pool, lambda item: self._appraiser.describe(item), clock
        )
        self.tree = PrefixTree(self.pool, self._block_tokens, evictor.offer, evictor.withdraw, fade)
        self.adapters = AdapterCache(
            config, arena, self.pool, evictor.offer, evictor.withdraw, fade
        )
        self.slots = AdapterSlots(self.adapters, evictor)
        self.arrivals = AdapterArrivals(
            self.adapters, copier(arena.adapters, MAX_ARRIVALS, pace), at_once_bytes, self._abandon
        )
        self.host = HostKV(config, arena.pool, policy, self.costs, clock)
        self._appraiser = Appraiser(config, values, self.adapters, self.host, evictor.bears_kv)
        self.fetches = KVFetches(
            config,
            self.host,
            copier(arena.pool),
            self.tree,
            self.pool,
            self.costs,
            clock,
            self._match,
            self._allocate_for_fetch,
        )
        self.pinning = Pinning(
            evictor, self.adapters, self.slots, self.arrivals, clock, self._place
        )
        self._competition = Competition(evictor, self.adapters, self._block_tokens)
        self.kv_evictions = 0
        self.adapter_evictions = 0

    @property
    def copiers(self) -> tuple[PageCopier, PageCopier]:
        """What works beside the steps."""
        return self.fetches.copier, self.arrivals.copier

    def register(self, tenant: Tenant) -> None:
        """See to the tenant's share of the memory. Raises InvalidRequestError when strict isolation
        leaves it none."""
        self._evictor.partitions.register(
            tenant, lambda: any(root.namespace == tenant.namespace for root in self.tree.roots())
        )

    def most_kv_pages(self, tenant: Tenant) -> int:
        """What one sequence of the tenant can have when nothing else runs."""
        partitions = self._evictor.partitions
        return partitions.most_pages(partitions.of(tenant.namespace, "kv"))

    @property
    def is_partitioned(self) -> bool:
        """Whether one tenant may lack pages while another does not."""
        return self._evictor.partitions.has_tenants

    def resident(self, request: GenerationRequest) -> ResidentAdapter | None:
        """The request's adapter, if it is on the device for this tenant."""
        key = self._adapter_key(request)
        return None if key is None else self.adapters.get(key[1], key[0])

    def is_arriving(self, request: GenerationRequest) -> bool:
        """Whether the request's adapter is being copied to the device."""
        key = self._adapter_key(request)
        return key is not None and self.arrivals.is_coming(key)

    def blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)

    def enter(self, sequence: Sequence) -> None:
        """A new sequence: it keeps its prefix root, purged or not, until `leave`."""
        request = sequence.request
        namespace = request.tenant.namespace
        digest = BASE if request.adapter is None else request.adapter.digest
        root = sequence.prefix_root = self.tree.enter(namespace, digest)
        root.weight = slo_weight(request.tenant)
        root.meter = sequence.meter
        needed = self.blocks(sequence.num_prompt + request.sampling.max_tokens)
        self._evictor.partitions.of(namespace, "kv").enter(needed)
        self.wait(sequence)

    def wait(self, sequence: Sequence) -> None:
        """The sequence waits to run: what it needs of the cache should stay."""
        key = self._adapter_key(sequence.request)
        if key is not None:
            self.adapters.want(key[1], key[0])
        sequence.wanted_end = self._match(sequence)
        self.tree.want(sequence.wanted_end)
        sequence.num_fetches = 0
        sequence.looked_ahead = False

    def stop_waiting(self, sequence: Sequence) -> None:
        """It runs, or has ended."""
        self.fetches.leave(sequence)
        key = self._adapter_key(sequence.request)
        if key is not None:
            self.adapters.unwant(key[1], key[0])
            self.arrivals.cancel_unwanted(key)
        self.tree.unwant(sequence.wanted_end)
        sequence.wanted_end = None

    def leave(self, sequence: Sequence) -> None:
        """The sequence has ended and holds no pages any more."""
        if sequence.prefix_root is not None:
            namespace = sequence.request.tenant.namespace
            self._evictor.partitions.of(namespace, "kv").leave()
            self.tree.leave(sequence.prefix_root)
            sequence.prefix_root = None

    def cached_tokens(self, sequence: Sequence) -> int:
        """Of a sequence's prefix, when it last began to wait."""
        return num_blocks(sequence.wanted_end) * self._block_tokens

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
        request, namespace = sequence.request, sequence.request.tenant.namespace
        end = self._match(sequence)
        needed = self.blocks(len(sequence.token_ids)) - num_blocks(end)
        adapter_pages = 0 if packed is None else packed.num_pages
        if not can_admit(self._evictor, sequence, end, resident, needed + reserve, adapter_pages):
            return False
        now_s = self._clock()
        self.tree.pin(end, now_s)
        if packed is not None:
            own, scope = self._place(namespace, packed)
            resident = self.adapters.install(packed, own, load_ms, now_s, namespace, scope)
            self._evictor.adapter_came(resident)
        if resident is not None:
            self.adapters.acquire(resident, now_s, request.tenant.key)
            resident.weight = slo_weight(request.tenant)
            resident.meter = sequence.meter
            sequence.adapter_slot = resident.slot
        sequence.prefix_end = end
        pages = self._allocate(needed, "kv", namespace, sequence.page_owner)
        self._count_running(sequence, 1)
        sequence.block_table = pages_to(end)
        sequence.block_table.extend(pages)
        sequence.num_computed = num_blocks(end) * self._block_tokens
        digest = None if request.adapter is None else request.adapter.digest
        self._evictor.demand.started(digest, now_s)
        return True

    def try_start_copy(
        self, sequence: Sequence, packed: PackedAdapter, load_ms: float, reserve: int
    ) -> bool:
        """Begin to copy the adapter of a waiting sequence to the device, of which the pages and the
        slot are taken now. False, and nothing changed, unless the sequence could be admitted beside
        it (see `try_admit`)."""
        end = self._match(sequence)
        needed = self.blocks(len(sequence.token_ids)) - num_blocks(end) + reserve
        if not can_admit(self._evictor, sequence, end, None, needed, packed.num_pages):
            return False
        namespace = sequence.request.tenant.namespace
        pages, scope = self._place(namespace, packed)
        arriving = self.adapters.reserve(packed, pages, load_ms, self._clock(), namespace, scope)
        self._evictor.adapter_came(arriving)
        self.arrivals.start(arriving, packed, sequence.request.tenant.key)
        return True

    def cancel_arrival(self, sequence: Sequence) -> bool:
        """Cancel an adapter's copy whose pages could help a running sequence to those it needs;
        returns whether there was one."""
        return self.arrivals.cancel_last(
            lambda arrival: self.adapter_competes(sequence, arrival.adapter)
        )

    def make_room(self, sequences: Collection[Sequence]) -> None:
        """Evict at once for a page for each of them, as far as it makes no difference to what is
        evicted who they are."""
        partitions = self._evictor.partitions
        owns = [partitions.of(sequence.request.tenant.namespace, "kv") for sequence in sequences]
        partition, count = partitions.most_alike(owns)
        if count <= partitions.available(partition, count, {}):
            self._make_room(partition, count, "kv")

    def try_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Pages for the KV of the sequence's first `num_tokens` tokens, evicting as needed."""
        count = max(self.blocks(num_tokens) - len(sequence.block_table), 0)
        namespace = sequence.request.tenant.namespace
        pages = self.try_allocate(count, "kv", namespace, sequence.page_owner)
        if pages is None:
            return False
        sequence.block_table.extend(pages)
        return True

    def try_allocate(
        self, count: int, kind: Kind, namespace: str, owner: int = 0
    ) -> list[int] | None:
        """`count` pages, at the cost of what is worth least; None when even that is not enough."""
        partitions = self._evictor.partitions
        partition = partitions.of(namespace, kind)
        if partitions.lacking(partition, count):
            if count > partitions.available(partition, count, {}):
                return None
            self._make_room(partition, count, kind)
        return self.pool.try_allocate(count, LIVE_KV if kind == "kv" else ADAPTER, partition, owner)

    def competitors(self, sequence: Sequence, running: Collection[Sequence]) -> list[Sequence]:
        """Those of `running` whose preemption could help the sequence to the pages it lacks."""
        return self._competition.among(sequence, running)

    def num_competitors(self, sequence: Sequence, running: Collection[Sequence]) -> int:
        return self._competition.count(sequence, running)

    def compete(self, sequence: Sequence, other: Sequence) -> bool:
        return self._competition.includes(sequence, other)

    def adapter_competes(self, sequence: Sequence, adapter: ResidentAdapter) -> bool:
        return self._competition.includes_adapter(sequence, adapter)

    def cache_blocks(self, sequence: Sequence) -> None:
        """Hand the blocks that have been computed in full to the prefix tree."""
        size, root = self._block_tokens, sequence.prefix_root
        first, full = num_blocks(sequence.prefix_end), sequence.num_computed // size
        if full <= first or root is None or not self._config.engine.prefix_caching:
            return
        begin, stop = first * size, full * size
        encoded = sequence.encoded[begin * TOKEN_BYTES : stop * TOKEN_BYTES]
        if len(encoded) < (stop - begin) * TOKEN_BYTES:  # not of its prompt alone
            encoded = encode_tokens(sequence.token_ids[begin:stop])
        pages, now_s = sequence.block_table[first:full], self._clock()
        sequence.prefix_end, cached = self.tree.insert(
            root, sequence.prefix_end, encoded, pages, now_s
        )
        if cached:  # another sequence was first with these blocks: share its pages
            self.pool.release(pages[: len(cached)])
            sequence.block_table[first : first + len(cached)] = cached
        self.host.name(sequence.prefix_end)

    def release(self, sequence: Sequence) -> None:
        """Take a running sequence's pages and its hold on the adapter. Its full blocks stay
        cached."""
        now_s = self._clock()
        self.cache_blocks(sequence)
        self._count_running(sequence, -1)
        self._evictor.demand.stopped(now_s)
        self.tree.unpin(sequence.prefix_end, now_s)
        self.pool.release(sequence.block_table[num_blocks(sequence.prefix_end) :])
        sequence.prefix_end = None
        sequence.block_table = array("i")
        sequence.num_computed = 0
        sequence.encoded = b""
        adapter = sequence.request.adapter
        if adapter is not None and sequence.adapter_slot != BASE_SLOT:
            resident = self.resident(sequence.request)
            if resident is None:
                raise IntegrityError(f"adapter {adapter.digest} was evicted while in use")
            self.adapters.release(resident, now_s)
            sequence.adapter_slot = BASE_SLOT

    def purge(self, namespace: str, digest: str) -> None:
        """Free what is cached of one (namespace, digest), on the device and on the host, now; what
        live sequences hold follows when they end."""
        self.fetches.cancel(lambda f: (f.root.namespace, f.root.digest) == (namespace, digest))
        self.tree.purge(namespace, digest)
        self.host.purge(namespace, digest)

    def drop_adapter(self, digest: str) -> None:
        """Evict an adapter that nobody uses, wherever it is resident and not pinned."""
        for resident in self.adapters.copies(digest):
            if not resident.pinned:
                self.give_up(resident)

    def pool_stats(self, running: Collection[Sequence]) -> PoolStats:
        """`running`: the sequences that hold pages."""
        return pool_stats(self.pool, self._config.page_bytes, self.tree, self.fetches, running)

    def page_view(self, namespace: str) -> PageView:
        """What all pages hold, and what a tenant's need would push out next."""
        return take_view(
            self._clock(), self.pool, self.tree, self.adapters, self._evictor,
            self._appraiser.describe, self.pinning, namespace,
        )  # fmt: skip

    def key_of(self, namespace: str, digest: str) -> Key:
        """Under which an adapter is kept for a tenant."""
        return self._evictor.scope(namespace), digest

    def check_integrity(self, running: Collection[Sequence]) -> None:
        """Raises IntegrityError unless free + live_kv + cached_kv + adapter == total and each used
        page has exactly one owner. O(pages)."""
        self.pool.check()
        self.adapters.check()
        check_ownership(self.pool, self.tree, self.adapters, self.fetches, running)
        self.host.check()
        self.pinning.check()
        self._evictor.partitions.check()
        check_candidates(self._evictor.num_candidates, self.tree, self.adapters)

    def _count_running(self, sequence: Sequence, change: int) -> None:
        partition = self._evictor.partitions.of(sequence.request.tenant.namespace, "kv")
        partition.running += change
        self.pool.note_change(partition)

    def _match(self, sequence: Sequence) -> PrefixNode | None:
        if sequence.prefix_root is None or not self._config.engine.prefix_caching:
            return None
        if not sequence.encoded:
            sequence.encoded = encode_tokens(sequence.token_ids)
        return self.tree.match(sequence.prefix_root, sequence.encoded)

    def _place(self, namespace: str, packed: PackedAdapter) -> tuple[list[int], str]:
        """Room for an adapter: its pages, a slot, and the scope it belongs to."""
        idle = self.slots.victim(namespace)
        if idle is not None:
            self._evict_adapter(idle)
        pages = self._allocate(packed.num_pages, "adapter", namespace)
        return pages, self._evictor.scope(namespace)

    def _allocate(self, count: int, kind: Kind, namespace: str, owner: int = 0) -> list[int]:
        pages = self.try_allocate(count, kind, namespace, owner)
        if pages is None:
            raise IntegrityError("there are not the pages that were promised")
        return pages

    def _make_room(self, partition: Partition[Item], count: int, kind: Kind) -> None:
        for item, most in self._evictor.victims(partition, count, kind):
            self._evict(item, most)

    def _allocate_for_fetch(
        self, sequence: Sequence, count: int, end: PrefixNode | None, ahead: bool
    ) -> list[int]:
        """See `KVFetches`."""
        kept, namespace = set(path(end)), sequence.request.tenant.namespace

        def is_spared(item: Item) -> bool:
            return item in kept or (ahead and self._appraiser.is_wanted(item))

        return allocate_sparing(
            self._evictor, self.pool, self._evict, namespace, count, is_spared, sequence.page_owner
        )

    def _evict(self, item: Item, most: int) -> None:
        """Of KV at most so many pages."""
        if isinstance(item, PrefixNode):
            self.host.keep(item, most)
            count = self.tree.evict(item, most)
            self.kv_evictions += count
            item.root.meter.kv_evictions += count
        else:
            self._evict_adapter(item)

    def _evict_adapter(self, resident: ResidentAdapter) -> None:
        self.give_up(resident)
        self.adapter_evictions += 1
        resident.meter.adapter_evictions += 1

    def give_up(self, resident: ResidentAdapter) -> None:
        """Take an adapter that nobody uses from the device. Raises IntegrityError while one is."""
        self.pinning.unpin(resident)
        partition = self._evictor.partition(resident)
        self.adapters.evict(resident)
        self._evictor.adapter_went(resident, partition)

    def _abandon(self, arriving: ResidentAdapter) -> None:
        partition = self._evictor.partition(arriving)
        self.adapters.abandon(arriving)
        self._evictor.adapter_went(arriving, partition)

    def _adapter_key(self, request: GenerationRequest) -> Key | None:
        if request.adapter is None:
            return None
        return self.key_of(request.tenant.namespace, request.adapter.digest)
