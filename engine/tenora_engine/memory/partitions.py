"""Partitions: whose pages are whose, and who may take pages from whom. It counts pages; what lies
in them and what they are worth it does not know."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from tenora_engine.errors import InvalidRequestError, QueueFullError
from tenora_engine.memory.eviction_queue import EvictionQueue, Paged
from tenora_engine.memory.policies import Kind, Partitioning
from tenora_engine.memory.pool import IntegrityError, PageAccount, PagePool

if TYPE_CHECKING:
    from tenora_engine.request import Tenant

ADAPTER_SHARE = 0.2
"""Of the arena under partitioning by kind: S-LoRA's static split, as papers measure it."""

PIN_SHARE = 0.25
"""Of the arena, or of a tenant's hard partition, at most: adapters that are never given up."""

STRICT_RETRY_MS = 1000
"""After which a tenant may ask again whose partition was not to be had."""

ItemT = TypeVar("ItemT", bound=Paged)


class Partition(PageAccount, Generic[ItemT]):
    """Pages with common bounds, and those of them that could be given up.

    A *hard* partition never holds more than `max_pages`, and the `max_pages` of all hard partitions
    together fit the arena: none of them can take a page from another. While it `is_idle` it may
    have to go as a whole, where a tenant comes that has none. Else `min_pages` are guaranteed
    (nobody takes from a partition that holds no more) and beyond `max_pages` it lives on what
    nobody within their shares needs.
    """

    def __init__(self, min_pages: int, max_pages: int, max_slots: int, hard: bool) -> None:
        super().__init__()
        self.min_pages = min_pages
        self.max_pages = max_pages
        self.max_slots = max_slots  # adapters
        self.hard = hard
        self.sequences = 0  # that have not ended
        self.running = 0  # of them
        self.most_needed = 0  # pages that one of them may come to need
        self.adapters = 0  # resident
        self.adapter_pages = 0
        self.pinned_pages = 0  # of them, that are never given up
        self.idle_adapter_pages = 0  # of adapters that nobody uses
        self.most_visits = 1  # of any candidate so far
        self.most_bytes = 1
        self.valued_s = 0.0  # when all candidates were valued last
        self.spare = 0  # what others could take of it, when that was last counted
        self.preemptible = 0  # running sequences that others could take pages of, then
        self.heads: dict[Kind, int] = {}  # tickets of the least of each queue, as last seen
        self.queues: dict[Kind, EvictionQueue[ItemT]] = {
            "kv": EvictionQueue(),
            "adapter": EvictionQueue(),
        }

    def enter(self, num_pages: int) -> None:
        """A sequence was accepted which needs so many pages in the end."""
        self.sequences += 1
        self.most_needed = max(self.most_needed, num_pages)

    def leave(self) -> None:
        self.sequences -= 1
        if not self.sequences:
            self.most_needed = 0

    @property
    def evictable_pages(self) -> int:
        """Every cached page can go: the descendants of an unreferenced node are unreferenced."""
        return self.cached + self.idle_adapter_pages

    @property
    def is_idle(self) -> bool:
        """Whether no request of its tenants is in flight, and all in it could be given up."""
        return not self.sequences and self.used == self.evictable_pages

    def surplus(self, beyond_max: bool, more: int = 0) -> int:
        """Pages above its maximum, or its minimum, with so many more."""
        surplus = self.used + more - (self.max_pages if beyond_max else self.min_pages)
        return surplus if surplus > 0 else 0

    def bounded_max(self, max_pages: int) -> int:
        """So many, but no fewer than are promised."""
        return max(max_pages, self.min_pages, self.most_needed + self.pinned_pages, 1)

    def is_promised(self, min_pages: int, max_pages: int) -> bool:
        """Whether these are its bounds already."""
        return self.min_pages == min_pages and self.max_pages == self.bounded_max(max_pages)

    @property
    def pinned_beyond(self) -> int:
        """Pages that are never given up and are not of those it is guaranteed."""
        return max(self.pinned_pages - self.min_pages, 0)

    def num_preemptible(self) -> int:
        """Running sequences that others could take pages of."""
        return self.running if self.surplus(beyond_max=False) and not self.hard else 0

    def takeable(self, beyond_max: bool = False, held: int = 0) -> int:
        """Pages that others could have of it; `held` of its evictable ones are spoken for."""
        return min(self.evictable_pages - held, self.surplus(beyond_max))


class Partitions(Generic[ItemT]):
    """The partitions of one arena. Tenants without shares have the common one together.

    An item taken from a partition above its minimum may be an adapter of several pages, so a
    minimum holds up to the pages of one adapter less one. `kept` pages are promised to nobody:
    whoever has no share, or a small one, is served whatever others have been promised.
    """

    def __init__(
        self, partitioning: Partitioning, pool: PagePool, max_slots: int, kept: int = 0
    ) -> None:
        self.partitioning = partitioning
        self._pool = pool
        self._max_slots = max_slots
        self._kept = kept
        self._tenants: dict[str, Partition[ItemT]] = {}
        self._kinds: dict[Kind, Partition[ItemT]] = {}
        self._promised = 0  # pages, as minimum
        self._pinned_beyond = 0  # pages, of all partitions
        self._spare = 0  # of all partitions
        self._preemptible = 0
        self._above_max: dict[Partition[ItemT], None] = {}  # those which something can be taken of
        self._unnoted: dict[Partition[ItemT], None] = {}  # whose least may not be in `_least`
        # The least candidate of each partition, by kind, among entries that are outdated: value, a
        # number, the ticket with which that is the value, candidate, partition.
        self._least: dict[Kind, list[tuple[float, int, int, ItemT, Partition[ItemT]]]] = {
            "kv": [],
            "adapter": [],
        }
        self._numbers = itertools.count()
        self._common: Partition[ItemT] = Partition(0, pool.total, max_slots, hard=False)
        if partitioning == "kind":
            adapter_pages = min(max(int(pool.total * ADAPTER_SHARE), 1), pool.total - 1)
            kv_pages = pool.total - adapter_pages
            self._kinds = {
                "adapter": Partition(adapter_pages, adapter_pages, max_slots, hard=True),
                "kv": Partition(kv_pages, kv_pages, max_slots, hard=True),
            }

    def __iter__(self) -> Iterator[Partition[ItemT]]:
        if self._kinds:
            yield from self._kinds.values()
        else:
            yield self._common
            yield from self._tenants.values()

    @property
    def has_tenants(self) -> bool:
        return bool(self._tenants)

    @property
    def tenants(self) -> Mapping[str, Partition[ItemT]]:
        """Those of tenants with shares, by namespace."""
        return self._tenants

    @property
    def adapters_are_shared(self) -> bool:
        """Whether tenants with an adapter of equal content use one copy."""
        return self.partitioning != "strict"

    def of(self, namespace: str, kind: Kind) -> Partition[ItemT]:
        """Where a page of a tenant is counted."""
        if self._kinds:
            return self._kinds[kind]
        return self._tenants.get(namespace, self._common)

    def holding(self, item: ItemT) -> Partition[ItemT]:
        """The partition in which its pages are."""
        account = self._pool.account(item.pages[0])
        if not isinstance(account, Partition):
            raise IntegrityError(f"page {item.pages[0]} belongs to no partition")
        return account

    def is_to_leave_common(self, tenant: Tenant) -> bool:
        """Whether the tenant has a share now, and no partition yet."""
        if self.partitioning != "tenant" or tenant.namespace in self._tenants:
            return False
        return tenant.min_memory_share > 0 or tenant.max_memory_share < 1

    def register(self, tenant: Tenant) -> None:
        """See to the partition of a tenant that sends a request: its own if it has shares. One that
        `is_to_leave_common` must have neither pages nor requests there.

        A minimum is cut to what is left of what others have been promised: their minimum, and pages
        for all they have in flight, at least those that are kept for everybody. In strict mode the
        partition is the minimum share, fixed while it is in use; what is `in_the_way` must have
        been emptied.
        """
        if self.partitioning == "strict":
            self._register_strictly(tenant)
            return
        if self.partitioning != "tenant":
            return
        total = self._pool.total
        known, wanted = self._tenants.get(tenant.namespace), int(tenant.min_memory_share * total)
        most = int(tenant.max_memory_share * total)
        if known is not None and known.is_promised(wanted, most):
            return
        if known is None and not self.is_to_leave_common(tenant):
            return
        self._drop_unused(tenant.namespace)
        others = [partition for partition in self if partition is not known]
        left = total - sum(other.min_pages + other.pinned_beyond for other in others)
        partition = known or Partition(0, total, self._max_slots, hard=False)
        beyond = max(other.most_needed - other.min_pages for other in others)
        partition.min_pages = max(min(wanted, left - max(beyond, self._kept)), 0)
        partition.max_pages = partition.bounded_max(most)
        self._tenants[tenant.namespace] = partition
        self._recount_promises()
        self._pool.note_change(partition)

    def in_the_way(self, tenant: Tenant) -> list[Partition[ItemT]]:
        """In strict mode: the partitions to be emptied before the tenant can have its own, or one
        that is as large as its share is now. They are idle, and no more than needed, those first
        whose tenant has asked for nothing for longest.

        Raises InvalidRequestError for a tenant without a share, and QueueFullError while requests
        in flight hold what it would need.
        """
        if self.partitioning != "strict":
            return []
        known, wanted = self._tenants.get(tenant.namespace), self._strict_pages(tenant)
        if known is not None and (known.max_pages == wanted or not known.is_idle):
            return []
        if not wanted:
            raise InvalidRequestError(
                "strict isolation: the tenant's memory share is less than one page; give its "
                "plan a larger memory share",
                param="tenant",
            )
        others = [p for p in self._tenants.values() if p is not known and (p.used or p.sequences)]
        left = self._pool.total - sum(other.max_pages for other in others)
        way = [known] if known is not None and wanted < known.max_pages else []
        for other in others:
            if left < wanted and other.is_idle:
                way.append(other)
                left += other.max_pages
        if left >= wanted:
            return way
        if known is not None:  # it goes on with what it has
            return []
        raise QueueFullError(
            f"strict isolation: the tenant's memory share is {wanted} pages, but requests of "
            f"other tenants in flight leave only {left} pages of their shares; try again later",
            STRICT_RETRY_MS,
        )

    def _register_strictly(self, tenant: Tenant) -> None:
        name, wanted = tenant.namespace, self._strict_pages(tenant)
        self._drop_unused(name)
        known = self._tenants.pop(name, None)
        partition: Partition[ItemT] = known or Partition(0, 0, 0, hard=True)
        self._tenants[name] = partition  # the last is who asked last
        left = self._pool.total - sum(p.max_pages for p in self._tenants.values())
        if partition.max_pages == wanted or not partition.is_idle:
            return
        if wanted <= left + partition.max_pages and partition.used <= wanted:
            partition.min_pages = partition.max_pages = wanted
            partition.max_slots = int(tenant.min_memory_share * self._max_slots)
            self._pool.note_change(partition)

    def _strict_pages(self, tenant: Tenant) -> int:
        return int(tenant.min_memory_share * self._pool.total)

    def is_common(self, partition: Partition[ItemT]) -> bool:
        """Whether it is that of all tenants without shares."""
        return partition is self._common

    def most_pages(self, partition: Partition[ItemT]) -> int:
        """What one sequence can have of it at most, when nothing else runs."""
        own = partition.pinned_pages
        if partition.hard:
            return partition.max_pages - own
        others = self._promised - partition.min_pages
        others += self._pinned_beyond - partition.pinned_beyond
        return min(partition.max_pages, self._pool.total - others) - own

    def pin(self, partition: Partition[ItemT], num_pages: int) -> None:
        """So many more of its pages are never given up; negative: fewer."""
        partition.pinned_pages += num_pages
        self._recount_promises()

    def pinnable_pages(self, partition: Partition[ItemT]) -> int:
        """How many more pages of it could be pinned, so that PIN_SHARE of it, or of an arena that
        is shared, is not passed, and all that is promised or in flight is kept."""
        if partition.hard:
            room = int(partition.max_pages * PIN_SHARE) - partition.pinned_pages
            return max(min(room, self.most_pages(partition) - partition.most_needed), 0)
        parts = list(self)
        room = int(self._pool.total * PIN_SHARE) - sum(each.pinned_pages for each in parts)
        within = max(partition.min_pages - partition.pinned_pages, 0)
        unpromised = self._pool.total - self._promised - self._pinned_beyond - self._kept
        others = [self.most_pages(p) - p.most_needed for p in parts if p.sequences]
        for spare in (unpromised, *others):
            room = min(room, within + max(spare, 0))
        return max(min(room, self.most_pages(partition) - partition.most_needed), 0)

    def available(
        self, partition: Partition[ItemT], count: int, held: Mapping[Partition[ItemT], int]
    ) -> int:
        """Pages that a demand for `count` could get, free or by eviction: all of them, or enough.
        `held`: those of the evictable ones that it would make use of."""
        own = partition.evictable_pages - held.get(partition, 0)
        if partition.hard:
            return partition.max_pages - partition.used + own
        if self._pool.num_free + own >= count:
            return self._pool.num_free + own
        self._recount()
        if partition.used - own + count > partition.max_pages:
            others = sum(
                other.takeable(beyond_max=True, held=held.get(other, 0))
                for other in self._above_max
                if other is not partition
            )
        else:
            others = self._spare - partition.spare
            for other, pages in held.items():
                if other is not partition:
                    others += other.takeable(held=pages) - other.spare
        return self._pool.num_free + own + others

    def note_candidates(self, partition: Partition[ItemT]) -> None:
        """They are others, or are valued otherwise, than before."""
        self._unnoted[partition] = None

    def least_spare(self, kind: Kind) -> tuple[float, ItemT] | None:
        """The candidate of least value of all partitions above their minimum, and its value. What
        is not above it is dropped until it changes."""
        self._note_all()
        heap = self._least[kind]
        while heap:
            value, _, ticket, item, partition = heap[0]
            if item.ticket == ticket:
                if partition.surplus(beyond_max=False):
                    return value, item
                partition.heads.pop(kind, None)
            heapq.heappop(heap)
        return None

    def spares(self, kind: Kind) -> Iterator[Partition[ItemT]]:
        """The partitions above their minimum that have such candidates, by the value of their
        least; some perhaps more than once. Nothing may change meanwhile."""
        self._note_all()
        return self._spares(self._least[kind])

    def _spares(
        self, heap: list[tuple[float, int, int, ItemT, Partition[ItemT]]]
    ) -> Iterator[Partition[ItemT]]:
        ahead = [(*heap[0][:2], 0)] if heap else []
        while ahead:
            *_, at = heapq.heappop(ahead)
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heapq.heappush(ahead, (*heap[below][:2], below))
            _, _, ticket, item, partition = heap[at]
            if item.ticket == ticket and partition.surplus(beyond_max=False):
                yield partition

    def lacking(self, partition: Partition[ItemT], count: int) -> int:
        """Pages that must be evicted before `count` can be allocated."""
        lacking = max(count - self._pool.num_free, 0)
        if partition.hard:
            return max(partition.used + count - partition.max_pages, lacking)
        return lacking

    def sources(
        self, partition: Partition[ItemT], count: int
    ) -> Collection[Partition[ItemT]] | None:
        """Where the next candidate for a demand of `count` pages comes from: those above their
        maximum first, then itself if it would be; None: itself or any above its minimum."""
        if partition.hard or not self._tenants:
            return (partition,)
        self._recount()
        if self._above_max:
            return self._above_max
        if partition.used + count > partition.max_pages and partition.evictable_pages:
            return (partition,)
        return None

    def above_max(self) -> Collection[Partition[ItemT]]:
        """Those above their maximum of which something can be taken."""
        self._recount()
        return self._above_max

    def most_alike(self, partitions: Collection[Partition[ItemT]]) -> tuple[Partition[ItemT], int]:
        """Of demands for a page each, the most for which the same would be taken: a partition for
        which it would be, too, and how many they are. There must be one."""
        counts: dict[Partition[ItemT], int] = {}
        for partition in partitions:
            # For all inside their bounds that is whatever is worth least above its own minimum.
            is_inside = partition.used + len(partitions) <= partition.max_pages
            if is_inside and not partition.hard and partition.surplus(beyond_max=False):
                partition = self._common
            counts[partition] = counts.get(partition, 0) + 1
        return max(counts.items(), key=lambda item: item[1])

    def most_from(self, source: Partition[ItemT], partition: Partition[ItemT], count: int) -> int:
        """Pages that this demand may take of one of its `sources`, as they are now, before they are
        others."""
        lacking = self.lacking(partition, count)
        if partition.hard or not self._tenants:
            return lacking
        if self._above_max:
            return min(source.surplus(beyond_max=True), lacking)
        if source is not partition:
            return min(source.surplus(beyond_max=False), lacking)
        beyond = partition.used + count - partition.max_pages
        return min(beyond, lacking) if beyond > 0 else lacking

    def num_competing(self, partition: Partition[ItemT], count: int) -> int:
        """Running sequences in the partitions that `compete` for this demand."""
        if partition.hard:
            return partition.running
        if partition.used - partition.evictable_pages + count > partition.max_pages:
            return sum(other.running for other in self if self.compete(partition, other, count))
        self._recount()
        return self._preemptible - partition.preemptible + partition.running

    def compete(
        self, partition: Partition[ItemT], other: Partition[ItemT], count: int, more: int = 0
    ) -> bool:
        """Whether `other`, with so many pages `more`, giving up some could help a demand for
        `count`."""
        if other is partition:
            return True
        if partition.hard or other.hard:
            return False
        beyond = partition.used - partition.evictable_pages + count > partition.max_pages
        return other.surplus(beyond, more) > 0

    def check(self) -> None:
        """Raises IntegrityError unless the counts kept are what counting anew gives."""
        self._recount()
        if self._spare != sum(partition.takeable() for partition in self):
            raise IntegrityError("the count of pages that can be taken is wrong")
        if self._preemptible != sum(partition.num_preemptible() for partition in self):
            raise IntegrityError("the count of running sequences that can be taken from is wrong")
        if set(self._above_max) != {p for p in self if p.takeable(beyond_max=True)}:
            raise IntegrityError("the partitions above their maximum are not those that are noted")
        for kind in self._least:
            queues = [p.queues[kind] for p in self if p.surplus(beyond_max=False)]
            values = [queue.least()[0] for queue in queues if len(queue)]
            least = self.least_spare(kind)
            if (least and least[0]) != min(values, default=None):
                raise IntegrityError(f"the least {kind} candidate is not the one that is noted")

    def _recount(self) -> None:
        """Take in what has changed since the last time."""
        for partition in self._pool.take_changed():
            if not isinstance(partition, Partition):
                continue
            spare, preemptible = partition.takeable(), partition.num_preemptible()
            self._spare += spare - partition.spare
            self._preemptible += preemptible - partition.preemptible
            if spare and not partition.spare:
                self._unnoted[partition] = None
            partition.spare, partition.preemptible = spare, preemptible
            if spare and partition.used > partition.max_pages:
                self._above_max[partition] = None
            else:
                self._above_max.pop(partition, None)

    def _note_all(self) -> None:
        """See to it that the least of every partition is in the heaps."""
        self._recount()
        for partition in self._unnoted:
            for kind, queue in partition.queues.items():
                if len(queue):
                    self._note_least(partition, kind)
        self._unnoted.clear()
        for kind, heap in self._least.items():
            if len(heap) > 4 * len(self._tenants) + 64:
                heap.clear()
                for partition in self:
                    partition.heads.pop(kind, None)
                    if len(partition.queues[kind]):
                        self._note_least(partition, kind)

    def _note_least(self, partition: Partition[ItemT], kind: Kind) -> None:
        """See to it that the partition's least is in the heap. There must be one."""
        value, item = partition.queues[kind].least()
        if partition.heads.get(kind) != item.ticket:
            partition.heads[kind] = item.ticket
            entry = (value, next(self._numbers), item.ticket, item, partition)
            heapq.heappush(self._least[kind], entry)

    def _recount_promises(self) -> None:
        self._promised = sum(partition.min_pages for partition in self)
        self._pinned_beyond = sum(partition.pinned_beyond for partition in self)

    def _drop_unused(self, namespace: str) -> None:
        """Forget tenants that have neither pages nor requests."""
        self._tenants = {
            name: partition
            for name, partition in self._tenants.items()
            if partition.used or partition.sequences or name == namespace
        }
