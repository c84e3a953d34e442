"""Forecast: what the evictor would give up next, one after another, and by which rule it would be
taken from whom. It works on counts of its own and changes nothing; the order is the evictor's."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec

from tenora_engine.memory.evictor import Evictor, Item, kind_of
from tenora_engine.memory.partitions import Partition
from tenora_engine.memory.policies import Candidate, Kind
from tenora_engine.memory.pool import PagePool
from tenora_engine.memory.prefix import PrefixNode
from tenora_engine.pages import Departure, TakenBy

DEPARTURES_MAX = 20
KINDS: tuple[Kind, ...] = ("kv", "adapter")


def forecast(
    evictor: Evictor,
    pool: PagePool,
    partition: Partition[Item],
    most: int = DEPARTURES_MAX,
) -> list[Departure]:
    """What would go, in this order, if `partition` asked for one page of KV after another once no
    page is free: at most so many runs of KV or adapters. O(partitions + most * log(candidates))."""
    evictor.revalue(evictor.partitions.sources(partition, 1) or evictor.partitions)
    course = _Course(evictor, pool, partition)
    departures: list[Departure] = []
    for going in itertools.islice(course.run(), most):
        departures.append(going)
    return departures


@dataclass
class _Held:
    """What a partition holds in the course of it."""

    used: int
    evictable: int
    adapters: int


class _Course:
    def __init__(self, evictor: Evictor, pool: PagePool, partition: Partition[Item]) -> None:
        self._evictor = evictor
        self._partitions = evictor.partitions
        self._own = partition
        self._gone_adapters = 0
        self._held: dict[Partition[Item], _Held] = {}
        self._touched: set[Partition[Item]] = set()
        self._heads: dict[tuple[Partition[Item], Kind], _Line] = {}
        # Of those that have changed since; the others are in their order before.
        self._changed: dict[Kind, list[tuple[float, int, Partition[Item]]]] = {
            kind: [] for kind in KINDS
        }
        self._unchanged = {kind: evictor.partitions.spares(kind) for kind in KINDS}
        self._first = {kind: next(spares, None) for kind, spares in self._unchanged.items()}
        self._numbers = itertools.count()
        # Nobody else comes to hold more.
        self._maybe_above = dict.fromkeys((*evictor.partitions.above_max(), partition))
        self._taken: dict[PrefixNode, int] = {}
        self._lost_children: dict[PrefixNode, int] = {}
        own = self._of(partition)
        free = pool.num_free
        own.used += min(free, partition.max_pages - own.used) if partition.hard else free
        for kind in KINDS:
            self._note(kind, partition)

    def run(self) -> Iterator[Departure]:
        while self._could_have_one():
            sources = self._sources()
            found = self._next(sources)
            if found is None:
                return
            item, source = found
            value, _ = self._line(source, kind_of(item)).take()
            candidate = self._evictor.describe(item, self._taken_of(item))
            by = self._rule(sources, source)
            pages = self._give_up(item, source, self._bound(sources, source))
            yield _departure(item, pages, candidate, value, by)

    def _taken_of(self, item: Item) -> int:
        return self._taken.get(item, 0) if isinstance(item, PrefixNode) else 0

    def _of(self, partition: Partition[Item]) -> _Held:
        held = self._held.get(partition)
        if held is None:
            held = _Held(partition.used, partition.evictable_pages, partition.adapters)
            self._held[partition] = held
        return held

    def _line(self, partition: Partition[Item], kind: Kind) -> _Line:
        line = self._heads.get((partition, kind))
        if line is None:
            line = self._heads[partition, kind] = _Line(partition.queues[kind].in_order())
        return line

    def _beyond(self, partition: Partition[Item], bound: int) -> int:
        return max(self._of(partition).used - bound, 0)

    def _could_have_one(self) -> bool:
        """As `Partitions.available` says of one page."""
        own, partition = self._of(self._own), self._own
        if partition.hard:
            return own.evictable > 0 or own.used < partition.max_pages
        if own.evictable or own.used + 1 <= partition.max_pages:
            return True
        return any(each is not partition for each in self._above_max())

    def _above_max(self) -> list[Partition[Item]]:
        if not self._partitions.has_tenants or self._own.hard:
            return []
        return [
            each
            for each in self._maybe_above
            if self._of(each).evictable and self._beyond(each, each.max_pages)
        ]

    def _sources(self) -> Collection[Partition[Item]] | None:
        """As `Partitions.sources`."""
        partition = self._own
        if partition.hard or not self._partitions.has_tenants:
            return (partition,)
        above = self._above_max()
        if above:
            return above
        own = self._of(partition)
        if own.used + 1 > partition.max_pages and own.evictable:
            return (partition,)
        return None

    def _rule(
        self, sources: Collection[Partition[Item]] | None, source: Partition[Item]
    ) -> TakenBy:
        if self._own.hard:
            return "own_partition"
        if not self._partitions.has_tenants:
            return "anyone"
        if sources is None:
            if source is not self._own:
                return "above_guarantee"
            return "common" if self._partitions.is_common(source) else "own"
        if self._beyond(source, source.max_pages):
            return "above_limit"
        return "own_limit"

    def _bound(self, sources: Collection[Partition[Item]] | None, source: Partition[Item]) -> int:
        """Pages that go by the same rule."""
        partition = self._own
        if source is partition or partition.hard or not self._partitions.has_tenants:
            return self._of(source).used
        if sources is not None:
            return max(self._beyond(source, source.max_pages), 1)
        until_full = partition.max_pages - self._of(partition).used
        return max(min(self._beyond(source, source.min_pages), until_full), 1)

    def _next(
        self, sources: Collection[Partition[Item]] | None
    ) -> tuple[Item, Partition[Item]] | None:
        """As `Evictor.victims` chooses."""
        state = self._evictor.state(self._own)
        adapters = state.resident_adapters - self._gone_adapters
        state = msgspec.structs.replace(state, resident_adapters=adapters)
        for kinds in self._evictor.ranks("kv", state):
            heads: list[tuple[float, Item, Partition[Item]]] = []
            for kind in kinds:
                for source in sources or (self._own,):
                    head = self._line(source, kind).head()
                    if head is not None:
                        heads.append((*head, source))
                if sources is None:
                    heads += self._least_spare(kind)
            if heads:
                _, item, source = min(heads, key=_by_value)
                return item, source
        return None

    def _least_spare(self, kind: Kind) -> list[tuple[float, Item, Partition[Item]]]:
        """Of all partitions above their guarantee."""
        heads = [*self._least_changed(kind), *self._least_unchanged(kind)]
        return [min(heads, key=_by_value)] if heads else []

    def _least_changed(self, kind: Kind) -> list[tuple[float, Item, Partition[Item]]]:
        heap = self._changed[kind]
        while heap:
            value, _, partition = heap[0]
            head = self._line(partition, kind).head()
            if head is not None and self._beyond(partition, partition.min_pages):
                if head[0] == value:
                    return [(*head, partition)]
                heapq.heapreplace(heap, (head[0], next(self._numbers), partition))
            else:
                heapq.heappop(heap)
        return []

    def _least_unchanged(self, kind: Kind) -> list[tuple[float, Item, Partition[Item]]]:
        while (partition := self._first[kind]) is not None:
            if partition not in self._touched:
                head = self._line(partition, kind).head()
                if head is not None:
                    return [(*head, partition)]
            self._first[kind] = next(self._unchanged[kind], None)
        return []

    def _note(self, kind: Kind, partition: Partition[Item]) -> None:
        """It has changed."""
        self._touched.add(partition)
        if self._beyond(partition, partition.min_pages):
            head = self._line(partition, kind).head()
            if head is not None:
                heap = self._changed[kind]
                heapq.heappush(heap, (head[0], next(self._numbers), partition))

    def _give_up(self, item: Item, source: Partition[Item], bound: int) -> list[int]:
        """Take it, of KV no more than so many pages, for the demand's partition."""
        own, held = self._of(self._own), self._of(source)
        if isinstance(item, PrefixNode):
            pages = self._shorten(item, source, bound)
        else:
            pages = list(item.pages)
            held.adapters -= 1
            self._gone_adapters += 1
        held.used -= len(pages)
        held.evictable -= len(pages)
        own.used += len(pages)
        for each in {source, self._own}:
            for kind in KINDS:
                self._note(kind, each)
        return pages

    def _shorten(self, node: PrefixNode, source: Partition[Item], bound: int) -> list[int]:
        """The pages at its end that go, and what can go then: what is left of it, or its parent."""
        before = self._taken.get(node, 0)
        left = node.pages[: len(node.pages) - before]
        count = min(bound, len(left))
        self._taken[node] = before + count
        if count < len(left):
            self._add(node, source)
        elif (parent := node.parent) is not None and not parent.references:
            self._lost_children[parent] = self._lost_children.get(parent, 0) + 1
            if self._lost_children[parent] == len(parent.children):
                self._add(parent, self._partitions.holding(parent))
        return list(left[len(left) - count :])[::-1]

    def _add(self, node: PrefixNode, partition: Partition[Item]) -> None:
        candidate = self._evictor.describe(node, self._taken.get(node, 0))
        state = self._evictor.state(partition)
        state = msgspec.structs.replace(
            state,
            most_visits=max(state.most_visits, candidate.visits),
            most_bytes=max(state.most_bytes, candidate.num_bytes),
        )
        self._line(partition, "kv").add(self._evictor.value(candidate, state), node)
        self._note("kv", partition)


class _Line:
    """Candidates of one partition and kind: those of its queue, and what can go after others."""

    def __init__(self, queue: Iterator[tuple[float, Item]]) -> None:
        self._queue = queue
        self._first = next(queue, None)
        self._added: list[tuple[float, int, Item]] = []
        self._numbers = itertools.count()

    def head(self) -> tuple[float, Item] | None:
        first, added = self._first, self._added
        if added and (first is None or added[0][0] < first[0]):
            return added[0][0], added[0][2]
        return first

    def take(self) -> tuple[float, Item]:
        """The head, which is no candidate any more. There must be one."""
        head = self.head()
        assert head is not None
        if head is self._first:
            self._first = next(self._queue, None)
        else:
            heapq.heappop(self._added)
        return head

    def add(self, value: float, item: Item) -> None:
        heapq.heappush(self._added, (value, next(self._numbers), item))


def _by_value(head: tuple[float, Item, Partition[Item]]) -> float:
    return head[0]


def _departure(
    item: Item, pages: list[int], candidate: Candidate, value: float, by: TakenBy
) -> Departure:
    digest = item.root.digest if isinstance(item, PrefixNode) else item.digest
    return Departure(
        kind=candidate.kind,
        namespace=candidate.namespace,
        digest=digest,
        pages=pages,
        value=value,
        again_s=candidate.reload_s if math.isfinite(candidate.reload_s) else None,
        again_by="copy" if candidate.fetch_s <= candidate.recompute_s else "compute",
        again_bytes=candidate.num_bytes,
        last_used_s=candidate.last_used_s,
        heat=candidate.heat,
        visits=candidate.visits,
        weight=candidate.weight,
        wanted=candidate.wanted,
        taken_by=by,
    )
