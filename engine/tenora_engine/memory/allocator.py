"""PageAllocator: pages and adapter slots for whoever needs them, free ones first, then those of
what is worth least; and Pinning: adapters that are never given up. What is worth least the evictor
says; whose turn it is, others decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.memory.adapter_cache import AdapterCache, ResidentAdapter
from tenora_engine.memory.evictor import Evictor, Item
from tenora_engine.memory.host_kv import HostKV
from tenora_engine.memory.partitions import PIN_SHARE, Partition, Partitions
from tenora_engine.memory.policies import Kind
from tenora_engine.memory.pool import ADAPTER, LIVE_KV, IntegrityError, PagePool
from tenora_engine.memory.prefix import PrefixNode, PrefixTree, path


class PageAllocator:
    """Evicts from the prefix tree and the adapter cache, KV perhaps to the host."""

    def __init__(
        self,
        pool: PagePool,
        evictor: Evictor,
        tree: PrefixTree,
        adapters: AdapterCache,
        host: HostKV,
    ) -> None:
        self._pool = pool
        self._evictor = evictor
        self._partitions = evictor.partitions
        self._tree = tree
        self._adapters = adapters
        self._host = host
        self.pinning = Pinning(evictor.partitions, adapters)
        self.kv_evictions = 0  # pages
        self.adapter_evictions = 0

    def try_allocate(
        self, count: int, kind: Kind, namespace: str, owner: int = 0
    ) -> list[int] | None:
        """`count` pages, at the cost of what is worth least; None when even that is not enough."""
        partition = self._partitions.of(namespace, kind)
        if self._partitions.lacking(partition, count):
            if count > self._partitions.available(partition, count, {}):
                return None
            self._make_room(partition, count, kind)
        return self._pool.try_allocate(
            count, LIVE_KV if kind == "kv" else ADAPTER, partition, owner
        )

    def allocate(self, count: int, kind: Kind, namespace: str, owner: int = 0) -> list[int]:
        """The same, where it is known that there are so many."""
        pages = self.try_allocate(count, kind, namespace, owner)
        if pages is None:
            raise IntegrityError("there are not the pages that were promised")
        return pages

    def allocate_at_most(
        self,
        count: int,
        namespace: str,
        owner: int,
        end: PrefixNode | None,
        spares_wanted: bool,
    ) -> list[int]:
        """At most `count` live KV pages for what can do without: free ones, and those of what is
        worth least until that is on the path to `end` or, if it `spares_wanted`, is needed by a
        waiting sequence."""
        partition = self._partitions.of(namespace, "kv")
        count = max(min(count, self._partitions.available(partition, count, {})), 0)
        kept = set(path(end))
        for item, most in self._evictor.victims(partition, count, "kv", kept, spares_wanted):
            self.evict(item, most)
        count = max(count - self._partitions.lacking(partition, count), 0)
        return self._pool.try_allocate(count, LIVE_KV, partition, owner) or []

    def release(self, pages: Sequence[int]) -> None:
        """Give back pages of one account and kind."""
        self._pool.release(pages)

    def make_room(self, namespaces: Iterable[str]) -> None:
        """Evict at once for a page of KV for each of them, as far as it makes no difference to what
        is evicted who they are."""
        owns = [self._partitions.of(namespace, "kv") for namespace in namespaces]
        partition, count = self._partitions.most_alike(owns)
        if count <= self._partitions.available(partition, count, {}):
            self._make_room(partition, count, "kv")

    def clear(self, partition: Partition[Item]) -> None:
        """Evict all that lies in an idle partition."""
        self._make_room(partition, partition.max_pages, "kv")

    def can_have(
        self,
        namespace: str,
        end: PrefixNode | None,
        resident: ResidentAdapter | None,
        kv_pages: int,
        adapter_pages: int,
    ) -> bool:
        """Whether there are so many pages, free or by eviction, beside a cached prefix up to `end`
        and an adapter that would be made use of."""
        held = self.spoken_for(end, resident)
        kv = self._partitions.of(namespace, "kv")
        others = self._partitions.of(namespace, "adapter")
        if kv is others:
            kv_pages += adapter_pages
        elif adapter_pages > self._partitions.available(others, adapter_pages, held):
            return False
        return kv_pages <= self._partitions.available(kv, kv_pages, held)

    def spoken_for(
        self, end: PrefixNode | None, resident: ResidentAdapter | None
    ) -> Counter[Partition[Item]]:
        """The evictable pages that who starts with this prefix and adapter makes use of."""
        held: Counter[Partition[Item]] = Counter()
        for node in path(end):
            if not node.references:
                held[self._partitions.holding(node)] += len(node.pages)
        if resident is not None and resident.is_idle:
            held[self._partitions.holding(resident)] += len(resident.pages)
        return held

    def can_have_slot(self, namespace: str) -> bool:
        """Whether a slot for an adapter is free or could be made so."""
        return self._has_slot(namespace) or bool(self._idle(namespace))

    def install(
        self, packed: PackedAdapter, namespace: str, load_ms: float, now_s: float
    ) -> ResidentAdapter:
        """Copy an adapter to the device. There must be room for it."""
        pages, scope = self._place(packed, namespace)
        resident = self._adapters.install(packed, pages, load_ms, now_s, namespace, scope)
        self._evictor.add_adapter(resident)
        return resident

    def reserve(
        self, packed: PackedAdapter, namespace: str, load_ms: float, now_s: float
    ) -> ResidentAdapter:
        """Pages and a slot for an adapter that somebody else copies. There must be room for it."""
        pages, scope = self._place(packed, namespace)
        arriving = self._adapters.reserve(packed, pages, load_ms, now_s, namespace, scope)
        self._evictor.add_adapter(arriving)
        return arriving

    def release_reserved(self, arriving: ResidentAdapter) -> None:
        """Give back what was reserved."""
        partition = self._partitions.holding(arriving)
        self._adapters.release_reserved(arriving)
        self._evictor.remove_adapter(arriving, partition)

    def evict(self, item: Item, most: int) -> None:
        """Of KV at most so many pages."""
        if isinstance(item, PrefixNode):
            self._host.store(item, most)
            count = self._tree.evict(item, most)
            self.kv_evictions += count
            item.root.meter.kv_evictions += count
        else:
            self._evict_adapter(item)

    def remove_adapter(self, resident: ResidentAdapter) -> None:
        """Take an adapter that nobody uses from the device. Raises IntegrityError while one is."""
        self.pinning.unpin(resident)
        partition = self._partitions.holding(resident)
        self._adapters.evict(resident)
        self._evictor.remove_adapter(resident, partition)

    def _make_room(self, partition: Partition[Item], count: int, kind: Kind) -> None:
        for item, most in self._evictor.victims(partition, count, kind):
            self.evict(item, most)

    def _evict_adapter(self, resident: ResidentAdapter) -> None:
        self.remove_adapter(resident)
        self.adapter_evictions += 1
        resident.meter.adapter_evictions += 1

    def _place(self, packed: PackedAdapter, namespace: str) -> tuple[list[int], str]:
        """Room for an adapter: its pages, a slot, and the scope it belongs to."""
        if not self._has_slot(namespace):
            self._evict_adapter(self._evictor.least(self._idle(namespace)))
        pages = self.allocate(packed.num_pages, "adapter", namespace)
        return pages, self._evictor.scope(namespace)

    def _has_slot(self, namespace: str) -> bool:
        partition = self._partitions.of(namespace, "adapter")
        return self._adapters.has_free_slot and partition.adapters < partition.max_slots

    def _idle(self, namespace: str) -> list[ResidentAdapter]:
        """Those that may be evicted for a slot: in strict mode the tenant's own, else rather not
        those of a tenant that holds no more than its minimum."""
        holding, own = self._partitions.holding, self._partitions.of(namespace, "adapter")
        idle = [item for item in self._adapters.residents() if item.is_idle]
        if own.hard:
            return [item for item in idle if holding(item) is own]
        rather = [i for i in idle if holding(i) is own or holding(i).surplus(False)]
        return rather or idle


class Pinning:
    """Adapters that the operator wants to stay on the device, and how much of the arena they may
    take. Which they are, others say (`scheduling.pins`)."""

    def __init__(self, partitions: Partitions[Item], adapters: AdapterCache) -> None:
        self._partitions = partitions
        self._adapters = adapters

    @property
    def pinned_pages(self) -> int:
        return sum(partition.pinned_pages for partition in self._partitions)

    def pinnable_pages(self, namespace: str) -> int:
        """How many more could be."""
        return self._partitions.pinnable_pages(self._partitions.of(namespace, "adapter"))

    def refusal(self, namespace: str, num_pages: int, others: int = 0) -> str | None:
        """Why an adapter of so many pages cannot be pinned; None if it can. `others`: pins that are
        on their way."""
        partition = self._partitions.of(namespace, "adapter")
        most = self._partitions.pinnable_pages(partition)
        if num_pages > most:
            return (
                f"it needs {num_pages} pages. {self.pinned_pages} pages are pinned and {most} "
                f"more can be: at most {PIN_SHARE:.0%} of the arena, and only what guaranteed "
                "shares and the longest request in flight leave free. Unpin another adapter "
                "first"
            )
        slots = partition.max_slots // 2
        pinned = others + sum(
            each.pinned and (not partition.hard or self._partitions.holding(each) is partition)
            for each in self._adapters.residents()
        )
        if pinned >= slots:
            return (
                f"{pinned} adapters are pinned, and at most {slots} can be (half of the adapter "
                "slots). Unpin another adapter first"
            )
        return None

    def pin(self, resident: ResidentAdapter) -> None:
        if not resident.pinned:
            self._adapters.pin(resident, True)
            self._partitions.pin(self._partitions.holding(resident), len(resident.pages))

    def unpin(self, resident: ResidentAdapter) -> None:
        if resident.pinned:
            self._partitions.pin(self._partitions.holding(resident), -len(resident.pages))
            self._adapters.pin(resident, False)

    def check(self) -> None:
        """Raises IntegrityError unless the counts of pinned pages are what is pinned."""
        counts = dict.fromkeys(self._partitions, 0)
        for resident in self._adapters.residents():
            if resident.pinned:
                counts[self._partitions.holding(resident)] += len(resident.pages)
        if any(partition.pinned_pages != count for partition, count in counts.items()):
            raise IntegrityError("the count of pinned pages is wrong")
