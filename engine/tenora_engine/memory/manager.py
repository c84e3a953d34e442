"""MemoryManager: the memory as the scheduler sees it: room for sequences and their adapters, what
is cached of them, what is on its way. It decides neither whose turn it is nor what is evicted."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Set

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.clocks import Clock, steady, unix_offset
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import PoolStats
from tenora_engine.memory.adapter_arrivals import AT_ONCE_BYTES, AdapterArrivals
from tenora_engine.memory.adapter_cache import AdapterCache, Key, ResidentAdapter
from tenora_engine.memory.allocator import PageAllocator
from tenora_engine.memory.costs import CostModel, slo_weight
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
from tenora_engine.memory.operations import MemoryOperations
from tenora_engine.memory.page_claims import PageClaim, held_pages, is_within_min, rank_of
from tenora_engine.memory.partitions import Partition
from tenora_engine.memory.policies import EvictionPolicy, make_policy
from tenora_engine.memory.pool import IntegrityError, PagePool
from tenora_engine.memory.prefix import (
    BASE,
    TOKEN_BYTES,
    PrefixNode,
    PrefixTree,
    num_blocks,
    pages_to,
)
from tenora_engine.memory.salts import encoded_of
from tenora_engine.request import GenerationRequest, Tenant
from tenora_engine.sequence import Sequence
from tenora_engine.step import EndedCopy
from tenora_kernels.segments import BASE_SLOT


class MemoryManager:
    """All pages of one arena.

    `register` precedes a tenant's requests; `enter` and `leave` bracket a sequence's life;
    `try_admit` and `release` bracket each time it runs, `release` keeping its full blocks as cache.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        policy: EvictionPolicy | None = None,
        clock: Clock = steady,
        at_once_bytes: float = AT_ONCE_BYTES,
        wall_clock: Clock | None = None,
    ) -> None:
        """Adapters of more than `at_once_bytes` are copied beside the steps. Raises ValueError for
        an eviction policy that does not exist, or not strictly."""
        self._config = config
        self._block_tokens = config.engine.block_tokens
        self._clock = clock
        self.unix_offset = unix_offset(clock, wall_clock)
        self.costs = CostModel(config)
        # What eviction goes by: in strict mode it never learns, so that no tenant's load shows in
        # what another's pages are worth.
        values = CostModel(config) if config.engine.strict_isolation else self.costs
        policy = policy or make_policy(config.engine.eviction_policy)
        self.pool = PagePool(config.num_pages)
        self.operations = MemoryOperations()
        self.host = HostKV(config, policy, self.costs, clock, self.operations)
        self._has_host_kv = self.host.total > 0
        self._evictor = Evictor(config, policy, self.pool, values, self.host, clock)
        self._partitions = self._evictor.partitions
        self.tree = PrefixTree(self.pool, self._block_tokens, self._evictor)
        self.adapters = AdapterCache(config, self.pool, self._evictor, self.operations)
        self.allocator = PageAllocator(
            self.pool, self._evictor, self.tree, self.adapters, self.host
        )
        self.pinning = self.allocator.pinning
        self.arrivals = AdapterArrivals(
            self.adapters, self.allocator, self.operations, self.costs, at_once_bytes
        )
        self.fetches = KVFetches(
            config, self.allocator, self.tree, self.host, self.operations, self.costs, clock
        )

    def register(self, tenant: Tenant) -> None:
        """See to the tenant's share of the memory. Raises InvalidRequestError when strict isolation
        leaves it none, and QueueFullError when it can have none now."""
        if self._partitions.is_to_leave_common(tenant) and any(
            root.namespace == tenant.namespace for root in self.tree.roots()
        ):
            return  # once it has neither pages nor requests there
        for partition in self._partitions.in_the_way(tenant):
            self.allocator.clear(partition)
        self._partitions.register(tenant)

    def most_kv_pages(self, tenant: Tenant) -> int:
        """What one sequence of the tenant can have when nothing else runs."""
        return self._partitions.most_pages(self._partitions.of(tenant.namespace, "kv"))

    def most_adapters(self, tenant: Tenant) -> int:
        """Adapters that the tenant can have on the device."""
        return self._partitions.of(tenant.namespace, "adapter").max_slots

    @property
    def is_partitioned(self) -> bool:
        """Whether one tenant may lack pages while another does not."""
        return self._partitions.has_tenants

    def resident(self, request: GenerationRequest) -> ResidentAdapter | None:
        """The request's adapter, if it is on the device for this tenant."""
        key = self._adapter_key(request)
        return None if key is None else self.adapters.get(key[1], key[0])

    def is_arriving(self, request: GenerationRequest) -> bool:
        """Whether the request's adapter is being copied to the device."""
        key = self._adapter_key(request)
        return key is not None and self.adapters.is_arriving(key)

    def blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)

    def enter(self, sequence: Sequence, like: Sequence | None = None) -> None:
        """A new sequence: it keeps its prefix root, purged or not, until `leave`. As much of it is
        cached as of the one that it is `like`."""
        request = sequence.request
        digest = BASE if request.adapter is None else request.adapter.digest
        root = sequence.prefix.root = self.tree.enter(request.tenant.namespace, digest)
        root.weight = slo_weight(request.tenant)
        root.meter = sequence.usage.meter
        needed = self.blocks(sequence.num_prompt + request.sampling.max_tokens)
        self._own(sequence).enter(needed)
        self.wait(sequence, like)

    def wait(self, sequence: Sequence, like: Sequence | None = None) -> None:
        """The sequence waits to run: what it needs of the cache should stay."""
        key = self._adapter_key(sequence.request)
        if key is not None:
            self.adapters.want(key[1], key[0])
        prefix = sequence.prefix
        prefix.encoded = like.prefix.encoded if like else prefix.encoded
        prefix.wanted_end = like.prefix.wanted_end if like else self._match(sequence)
        self.tree.want(prefix.wanted_end)
        prefix.num_fetches = prefix.lacked = 0
        prefix.looked_ahead = False

    def stop_waiting(self, sequence: Sequence) -> None:
        """It runs, or has ended."""
        if sequence.prefix.fetch is not None:
            self.fetches.leave(sequence)
        key = self._adapter_key(sequence.request)
        if key is not None:
            self.adapters.unwant(key[1], key[0])
            if self.arrivals.in_flight:
                self.arrivals.cancel_unwanted(key)
        self.tree.unwant(sequence.prefix.wanted_end)
        sequence.prefix.wanted_end = None

    def leave(self, sequence: Sequence) -> None:
        """The sequence has ended and holds no pages any more."""
        if sequence.prefix.root is not None:
            self._own(sequence).leave()
            self.tree.leave(sequence.prefix.root)
            sequence.prefix.root = None

    def cached_tokens(self, sequence: Sequence) -> int:
        """Of a sequence's prefix, when it last began to wait."""
        return num_blocks(sequence.prefix.wanted_end) * self._block_tokens

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
        if not self.allocator.can_have(namespace, end, resident, needed + reserve, adapter_pages):
            sequence.prefix.lacked = needed + reserve
            return False
        sequence.prefix.lacked = 0
        now_s = self._clock()
        self.tree.pin(end, now_s)
        if packed is not None:
            resident = self.allocator.install(packed, namespace, load_ms, now_s)
        if resident is not None:
            self.adapters.acquire(resident, now_s, request.tenant.key)
            resident.weight = slo_weight(request.tenant)
            resident.meter = sequence.usage.meter
            sequence.adapter_slot = resident.slot
        sequence.prefix.end = end
        pages = self.allocator.allocate(needed, "kv", namespace, sequence.page_owner)
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
        tenant = sequence.request.tenant
        if not self.allocator.can_have(tenant.namespace, end, None, needed, packed.num_pages):
            sequence.prefix.lacked = needed
            return False
        self.arrivals.start(packed, tenant, load_ms, self._clock())
        return True

    def try_install(self, tenant: Tenant, packed: PackedAdapter, load_ms: float) -> bool:
        """See to it that an adapter, which nobody may have asked for, comes to the device: for the
        operator, who has pinned it. False, and nothing changed, while there is no room."""
        is_large = self.arrivals.is_large(packed)
        if is_large and self.arrivals.is_full(tenant.key):
            return False
        partition = self._partitions.of(tenant.namespace, "adapter")
        if packed.num_pages > self._partitions.available(partition, packed.num_pages, {}):
            return False
        if not self.allocator.can_have_slot(tenant.namespace):
            return False
        now_s = self._clock()
        if is_large:
            coming = self.arrivals.start(packed, tenant, load_ms, now_s)
        else:
            coming = self.allocator.install(packed, tenant.namespace, load_ms, now_s)
        coming.unpaid_bytes = 0
        return True

    def can_have_slot(self, tenant: Tenant) -> bool:
        """Whether a slot for an adapter is free for the tenant, or could be made so."""
        return self.allocator.can_have_slot(tenant.namespace)

    def slot_holders(self, tenant: Tenant) -> list[ResidentAdapter]:
        """The adapters of which one must go for the tenant to have a slot, when none is free."""
        partition = self._partitions.of(tenant.namespace, "adapter")
        residents = self.adapters.residents()
        if not partition.hard:
            return list(residents)
        return [item for item in residents if self._partitions.holding(item) is partition]

    def still_lacks(self, sequence: Sequence) -> bool:
        """Whether there are still fewer pages than a waiting sequence lacked when it was last to
        start. O(1); it may lack fewer than then, where more of its prefix is cached."""
        lacked = sequence.prefix.lacked
        return lacked > 0 and lacked > self._partitions.available(self._own(sequence), lacked, {})

    def cancel_coming(self, sequence: Sequence, tenant_key: str | None = None) -> bool:
        """Cancel fetches, or else the copy of an adapter that began last, or let adapters go that
        are kept for who waits for them, whose pages could help a running sequence to those it
        needs: one tenant's, or anybody's. Returns whether there were any."""
        if self.fetches.cancel(tenant_key):
            return True
        for arrival in reversed(list(self.arrivals)):
            is_its = tenant_key in (None, arrival.tenant_key)
            if is_its and self.adapter_competes(sequence, arrival.adapter):
                self.arrivals.cancel(arrival)
                return True
        return self.adapters.let_go(tenant_key)

    def held_pages(self, sequence: Sequence) -> tuple[float, int]:
        """Pages that a running sequence holds, of those that it shares a part, and how many others
        could have if it gave up its own."""
        has_adapter = sequence.adapter_slot != BASE_SLOT
        return held_pages(sequence, self.resident(sequence.request) if has_adapter else None)

    def page_rank(self, sequence: Sequence, more: int = 0) -> int:
        """See `rank_of`: of the partition in which its pages are."""
        return rank_of(self._own(sequence), more)

    def page_claim(self, sequence: Sequence, packed: PackedAdapter | None) -> PageClaim:
        """What a waiting sequence lacks to start, its adapter installed first if it is `packed`."""
        own, end = self._own(sequence), self._match(sequence)
        pages = self.blocks(len(sequence.token_ids)) - num_blocks(end)
        namespace = sequence.request.tenant.namespace
        if packed is not None and own is self._partitions.of(namespace, "adapter"):
            pages += packed.num_pages
        spoken_for = self.allocator.spoken_for(end, self.resident(sequence.request))
        return PageClaim(self._partitions, own, pages, spoken_for)

    def is_guaranteed(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence is within its tenant's minimum even where nothing of it is
        cached. O(1)."""
        return is_within_min(self._own(sequence), self.blocks(len(sequence.token_ids)))

    def request_fetch(self, sequence: Sequence, *, ahead: bool, busy: bool = False) -> bool:
        """See `KVFetches.request`."""
        return self._has_host_kv and self.fetches.request(sequence, ahead=ahead, busy=busy)

    def estimate_fetch(self, sequence: Sequence) -> tuple[int, float]:
        """See `KVFetches.estimate`."""
        return self.fetches.estimate(sequence) if self._has_host_kv else (0, 0.0)

    def cancel_other_fetches(self, sequences: Set[Sequence]) -> None:
        """Cancel the fetches that none of the sequences waits for."""
        if self.fetches.in_flight:
            self.fetches.cancel_others(sequences)

    def take_copies(self, copies: Collection[EndedCopy]) -> list[tuple[str, bool]]:
        """Cached KV that has come from the host, and adapters, are found from now on. Returns which
        adapters these are, see `AdapterArrivals.take`."""
        self.fetches.take(copies)
        return self.arrivals.take(copies)

    def competitors(self, sequence: Sequence, running: Collection[Sequence]) -> list[Sequence]:
        """Those of `running` whose preemption could help the sequence to the pages it lacks: such a
        one gives up its KV, and what an adapter takes that nobody else uses."""
        if not self._partitions.has_tenants:
            return list(running)
        own, count, slots = self._own(sequence), self._lacks(sequence), self._slots(sequence)
        compete: dict[str, bool] = {}
        for namespace in {other.request.tenant.namespace for other in running}:
            other = self._partitions.of(namespace, "kv")
            compete[namespace] = self._partitions.compete(own, other, count)
        return [
            other
            for other in running
            if compete[other.request.tenant.namespace] or other.adapter_slot in slots
        ]

    def num_competitors(self, sequence: Sequence, running: Collection[Sequence]) -> int:
        """How many they are among all that run. O(running) only where an adapter lies in the
        sequence's partition."""
        if not self._partitions.has_tenants:
            return len(running)
        num = self._partitions.num_competing(self._own(sequence), self._lacks(sequence))
        slots = self._slots(sequence)
        if slots:
            holders = [other for other in running if other.adapter_slot in slots]
            num += sum(not self.compete(sequence, other) for other in holders)
        return num

    def compete(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether the KV of `other` lies where pages could help the sequence."""
        own, its, lacks = self._own(sequence), self._own(other), self._lacks(sequence)
        return not self._partitions.has_tenants or self._partitions.compete(own, its, lacks)

    def competes_with_any(self, sequence: Sequence, others: Collection[Sequence]) -> bool:
        """Whether one of `others` could be helped by pages that the sequence has or asks for."""
        if not others or not self._partitions.has_tenants:
            return bool(others)
        its, more = self._own(sequence), self._lacks(sequence)
        if is_within_min(its, more):  # what is cached of it makes room for it alone
            return any(self._own(other) is its for other in others)
        compete, own, lacks = self._partitions.compete, self._own, self._lacks
        return any(compete(own(other), its, lacks(other), more) for other in others)

    def adapter_competes(self, sequence: Sequence, adapter: ResidentAdapter) -> bool:
        """Whether the adapter's pages could help the sequence."""
        its = self._partitions.holding(adapter)
        return self._partitions.compete(self._own(sequence), its, self._lacks(sequence))

    def make_room(self, sequences: Collection[Sequence]) -> None:
        """Evict at once for a page for each of them, as far as it makes no difference to what is
        evicted who they are."""
        self.allocator.make_room(sequence.request.tenant.namespace for sequence in sequences)

    def try_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Pages for the KV of the sequence's first `num_tokens` tokens, evicting as needed."""
        count = max(self.blocks(num_tokens) - len(sequence.block_table), 0)
        namespace = sequence.request.tenant.namespace
        pages = self.allocator.try_allocate(count, "kv", namespace, sequence.page_owner)
        if pages is None:
            return False
        sequence.block_table.extend(pages)
        return True

    def room_for_drafts(self, sequence: Sequence, wanted: int, takes_page: bool) -> int:
        """Tokens, at most those wanted, behind the sequence's own for which it has pages. If it
        `takes_page`, the one after those of its tokens is taken, which it is about to need."""
        length, size = len(sequence.token_ids), self._block_tokens
        end = len(sequence.block_table) * size
        is_short = end - length < min(wanted, size)
        if is_short and takes_page and self.try_grow(sequence, end + 1):
            end += size
        return min(wanted, end - length)

    def cache_blocks(self, sequence: Sequence) -> None:
        """Hand the blocks that have been computed in full to the prefix tree."""
        size, root = self._block_tokens, sequence.prefix.root
        first, full = num_blocks(sequence.prefix.end), sequence.num_computed // size
        if full <= first or root is None or not self._config.engine.prefix_caching:
            return
        begin, stop = first * size, full * size
        encoded = sequence.prefix.encoded[begin * TOKEN_BYTES : stop * TOKEN_BYTES]
        if len(encoded) < (stop - begin) * TOKEN_BYTES:  # not of its prompt alone
            encoded = encoded_of(sequence, begin, stop)
        pages, now_s = sequence.block_table[first:full], self._clock()
        sequence.prefix.end, cached = self.tree.insert(
            root, sequence.prefix.end, encoded, pages, now_s
        )
        if cached:  # another sequence was first with these blocks: share its pages
            self.pool.release(pages[: len(cached)])
            sequence.block_table[first : first + len(cached)] = cached
        if self._has_host_kv:
            self.host.hash_blocks(sequence.prefix.end)

    def release(self, sequence: Sequence) -> None:
        """Take a running sequence's pages and its hold on the adapter. Its full blocks stay
        cached."""
        now_s = self._clock()
        self.cache_blocks(sequence)
        self._count_running(sequence, -1)
        self._evictor.demand.stopped(now_s)
        self.tree.unpin(sequence.prefix.end, now_s)
        self.pool.release(sequence.block_table[num_blocks(sequence.prefix.end) :])
        sequence.prefix.end = None
        sequence.block_table = array("i")
        sequence.num_computed = 0
        sequence.prefix.encoded = b""
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
        self.fetches.purge(namespace, digest)
        self.tree.purge(namespace, digest)
        self.host.purge(namespace, digest)

    def purge_namespace(self, namespace: str) -> None:
        """The same of all that is cached of a namespace, and, where tenants do not share them, its
        adapters that nobody uses."""
        for digest in {root.digest for root in self.tree.roots() if root.namespace == namespace}:
            self.purge(namespace, digest)
        for resident in list(self.adapters.residents()):
            if resident.scope == namespace and resident.is_idle:
                self.allocator.remove_adapter(resident)

    def drop_adapter(self, digest: str) -> None:
        """Evict an adapter that nobody uses, wherever it is resident and not pinned."""
        for resident in self.adapters.copies(digest):
            if not resident.pinned:
                self.allocator.remove_adapter(resident)

    def remove_adapter(self, resident: ResidentAdapter) -> None:
        """Take an adapter that nobody uses from the device. Raises IntegrityError while one is."""
        self.allocator.remove_adapter(resident)

    def pool_stats(self, running: Collection[Sequence]) -> PoolStats:
        """`running`: the sequences that hold pages."""
        return pool_stats(self.pool, self._config.page_bytes, self.tree, self.fetches, running)

    def page_view(self, namespace: str) -> PageView:
        """What all pages hold, and what a tenant's need would push out next."""
        now_s, evictor, to_unix_s = self._clock(), self._evictor, self.unix_offset()
        return take_view(
            now_s, to_unix_s, self.pool, self.tree, self.adapters, evictor, self.pinning, namespace
        )

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
        self._partitions.check()
        check_candidates(self._evictor.num_candidates, self.tree, self.adapters)

    def _count_running(self, sequence: Sequence, change: int) -> None:
        partition = self._own(sequence)
        partition.running += change
        self.pool.note_change(partition)

    def _match(self, sequence: Sequence) -> PrefixNode | None:
        caches = self._config.engine.prefix_caching and not sequence.num_unscored
        if sequence.prefix.root is None or not caches:
            return None
        if not sequence.prefix.encoded:
            sequence.prefix.encoded = encoded_of(sequence)
        return self.tree.match(sequence.prefix.root, sequence.prefix.encoded)

    def _own(self, sequence: Sequence) -> Partition[Item]:
        return self._partitions.of(sequence.request.tenant.namespace, "kv")

    def _lacks(self, sequence: Sequence) -> int:
        return self.blocks(len(sequence.token_ids)) - len(sequence.block_table)

    def _slots(self, sequence: Sequence) -> set[int]:
        """Of the adapters in the sequence's partition, whoever uses them."""
        own = self._own(sequence)
        if not own.adapters:
            return set()
        residents = self.adapters.residents()
        return {item.slot for item in residents if self._partitions.holding(item) is own}

    def _adapter_key(self, request: GenerationRequest) -> Key | None:
        if request.adapter is None:
            return None
        return self.key_of(request.tenant.namespace, request.adapter.digest)
