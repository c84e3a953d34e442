"""What all pages of the arena hold, by their owners: counts for metrics, a copy of the bookkeeping
for operators, and the proof that each used page has exactly one owner. It changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from tenora_engine.events import PoolStats
from tenora_engine.memory.adapter_cache import AdapterCache, ResidentAdapter
from tenora_engine.memory.allocator import Pinning
from tenora_engine.memory.evictor import Evictor
from tenora_engine.memory.forecast import forecast
from tenora_engine.memory.host_kv import KVFetch
from tenora_engine.memory.kv_fetches import KVFetches
from tenora_engine.memory.pool import ADAPTER, CACHED_KV, FREE, LIVE_KV, IntegrityError, PagePool
from tenora_engine.memory.prefix import PrefixNode, PrefixTree, num_blocks, pages_to, path, walk
from tenora_engine.pages import ArenaAdapter, Departure, PageOwner, PartitionPages
from tenora_engine.sequence import Sequence
from tenora_kernels.segments import BASE_SLOT


def pool_stats(
    pool: PagePool,
    page_bytes: int,
    tree: PrefixTree,
    fetches: Iterable[KVFetch],
    running: Iterable[Sequence],
) -> PoolStats:
    """What the pages hold now, by kind and tenant. `running`: the sequences that hold pages.
    O(pages)."""
    live: Counter[str] = Counter()
    cached: Counter[str] = Counter()
    for root in tree.roots():
        live[root.namespace] += root.live_pages
        cached[root.namespace] += root.cached_pages
    for sequence in running:
        own = len(sequence.block_table) - num_blocks(sequence.prefix.end)
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


_KIND_OF = {FREE: 0, LIVE_KV: 1, CACHED_KV: 2, ADAPTER: 3}


@dataclass(frozen=True)
class PageView:
    """What the arena held at `at_s`, in two parts: a copy of the bookkeeping, taken between
    two steps at little cost, and what is made of it, in any other thread: `dated` and `runs`."""

    at_s: float
    to_unix_s: float  # from the engine's clock, by which all its moments are until `dated`
    policy: str
    marks: tuple[bytes, bytes, bytes]  # see `PagePool.marks`
    roots: dict[int, tuple[str, str]]
    adapters: Items[tuple[ArenaAdapter, Items[int]]]  # with their pages
    partitions: list[PartitionPages]
    departures: list[Departure]
    pinned_pages: int
    pinnable_pages: int

    def dated(self) -> PageView:
        """The same with the moments of adapters, departures and the view itself in unix time, as it
        is to be shown; `runs` is by unix time in either."""
        later, replaced = self.to_unix_s, msgspec.structs.replace
        return replace(
            self,
            at_s=self.at_s + later,
            adapters=[
                (replaced(each, last_used_s=each.last_used_s + later), pages)
                for each, pages in self.adapters
            ],
            departures=[
                replaced(each, last_used_s=each.last_used_s + later) for each in self.departures
            ],
        )

    def runs(self) -> tuple[list[int], list[int], list[PageOwner]]:
        """Pages by kind, the runs and the owners, as in `ArenaPages`. O(pages), in numpy."""
        kinds = _kinds(self.marks[0])
        owners = np.frombuffer(self.marks[1], np.uint32).copy()
        since = np.frombuffer(self.marks[2], np.uint32) + round(self.to_unix_s)
        names = dict(self.roots)
        number = max(names, default=0)
        for adapter, pages in self.adapters:
            number += 1
            names[number] = adapter.namespace, adapter.digest
            owners[np.asarray(pages, np.int64)] = number
        owners[kinds == 0] = 0
        since[kinds != _KIND_OF[CACHED_KV]] = 0
        starts = _starts(kinds, owners, since)
        lengths = np.diff(np.append(starts, len(kinds)))
        shown, index = np.unique(owners[starts], return_inverse=True)
        if len(shown) and shown[0]:
            index += 1  # nobody is always there
        table = [PageOwner(*names.get(int(each), ("", ""))) for each in shown if each]
        runs = np.stack([lengths, kinds[starts], index, since[starts]], axis=1)
        counts = np.bincount(kinds, minlength=len(_KIND_OF))
        flat: list[int] = runs.astype(np.int64).ravel().tolist()
        return counts.tolist(), flat, [PageOwner("", ""), *table]


def _kinds(marks: bytes) -> npt.NDArray[np.int64]:
    table = np.zeros(256, np.int64)
    for mark, kind in _KIND_OF.items():
        table[mark] = kind
    return table[np.frombuffer(marks, np.uint8)]


def _starts(*columns: npt.NDArray[np.int64 | np.uint32]) -> npt.NDArray[np.int64]:
    """Where one of the columns is another than before."""
    size = len(columns[0])
    differs = np.zeros(size, bool)
    differs[: min(size, 1)] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def take_view(
    now_s: float,
    to_unix_s: float,
    pool: PagePool,
    tree: PrefixTree,
    adapters: AdapterCache,
    evictor: Evictor,
    pinning: Pinning,
    namespace: str,
) -> PageView:
    """Copies of the bookkeeping, and what `namespace` would push out next. On the engine's thread:
    O(adapters and partitions), and a copy of nine bytes a page."""
    return PageView(
        at_s=now_s,
        to_unix_s=to_unix_s,
        policy=evictor.policy_name,
        marks=pool.marks(),
        roots=tree.owners.copy(),
        adapters=[
            *((_adapter(each, False), each.pages) for each in adapters.residents()),
            *((_adapter(each, True), each.pages) for each in adapters.arriving()),
        ],
        partitions=_partitions(evictor),
        departures=forecast(evictor, pool, evictor.partitions.of(namespace, "kv")),
        pinned_pages=pinning.pinned_pages,
        pinnable_pages=pinning.pinnable_pages(namespace),
    )


def _adapter(resident: ResidentAdapter, arriving: bool) -> ArenaAdapter:
    return ArenaAdapter(
        digest=resident.digest,
        namespace=resident.namespace,
        rank=resident.rank,
        num_pages=len(resident.pages),
        references=resident.references,
        last_used_s=resident.last_used_s,
        pinned=resident.pinned,
        arriving=arriving,
    )


def _partitions(evictor: Evictor) -> list[PartitionPages]:
    names = {partition: name for name, partition in evictor.partitions.tenants.items()}
    return [
        PartitionPages(
            namespace=names.get(partition),
            min_pages=partition.min_pages,
            max_pages=partition.max_pages,
            used=partition.used,
            evictable=partition.evictable_pages,
            pinned=partition.pinned_pages,
            hard=partition.hard,
        )
        for partition in evictor.partitions
    ]


def check_ownership(
    pool: PagePool,
    tree: PrefixTree,
    adapters: AdapterCache,
    fetches: KVFetches,
    running: Collection[Sequence],
) -> None:
    """Raises IntegrityError when a page has two owners, none, or the wrong kind, or when a count
    of references is wrong. `running`: the sequences that hold pages. O(pages)."""
    owners: dict[int, str] = {}
    _claim_cache(pool, tree, owners, running)
    _claim_sequences(pool, owners, running)
    _claim_fetches(pool, owners, fetches)
    _claim_adapters(pool, adapters, owners, running)
    if len(owners) + pool.num_free != pool.total:
        lost = [p for p in range(pool.total) if pool.kind(p) != FREE and p not in owners]
        raise IntegrityError(f"pages without an owner: {lost}")


def check_candidates(queued: int, tree: PrefixTree, adapters: AdapterCache) -> None:
    """Raises IntegrityError unless so many are what can be given up: adapters and leaves of the
    tree that nobody uses, and nobody has pinned."""
    candidates = sum(1 for item in adapters.residents() if item.is_idle)
    candidates += sum(1 for root in tree.roots() for _ in root.evictable())
    if candidates != queued:
        raise IntegrityError(f"{queued} candidates for eviction are queued, there are {candidates}")


def _claim(pool: PagePool, owners: dict[int, str], page: int, kind: int, owner: str) -> None:
    if page in owners:
        raise IntegrityError(f"page {page} belongs to {owners[page]} and to {owner}")
    if pool.kind(page) != kind:
        raise IntegrityError(
            f"page {page} of {owner} is marked {chr(pool.kind(page))!r}, not {chr(kind)!r}"
        )
    owners[page] = owner


def _claim_cache(
    pool: PagePool, tree: PrefixTree, owners: dict[int, str], running: Collection[Sequence]
) -> None:
    references: Counter[PrefixNode] = Counter()
    for sequence in running:
        references.update(path(sequence.prefix.end))
    for root in tree.roots():
        live = cached = 0
        for node in walk(root):
            _claim_node(pool, owners, node)
            if node.references != references.pop(node, 0):
                raise IntegrityError(f"wrong reference count on the cached {node}")
            if node.parent is not None and node.references > node.parent.references:
                raise IntegrityError(f"{node} is used without its prefix")
            live += len(node.pages) if node.references else 0
            cached += 0 if node.references else len(node.pages)
        if (live, cached) != (root.live_pages, root.cached_pages):
            raise IntegrityError(f"wrong page counts of {root.namespace}/{root.digest}")
    if references:
        raise IntegrityError("a sequence uses a cached block that is not in the tree")


def _claim_node(pool: PagePool, owners: dict[int, str], node: PrefixNode) -> None:
    kind = LIVE_KV if node.references else CACHED_KV
    for page in node.pages:
        _claim(pool, owners, page, kind, f"cache {node.root.namespace}/{node.root.digest}")
    if any(pool.owner(page) != node.root.number for page in node.pages):
        raise IntegrityError(f"pages of {node} are marked as another's")
    if len({pool.account(page) for page in node.pages}) != 1:
        raise IntegrityError(f"{node} is in several accounts, or empty")
    if node.depth != num_blocks(node.parent):
        raise IntegrityError(f"{node} does not begin where its prefix ends")


def _claim_sequences(pool: PagePool, owners: dict[int, str], running: Collection[Sequence]) -> None:
    for sequence in running:
        name = f"sequence {sequence.request.request_id}:{sequence.index}"
        shared = num_blocks(sequence.prefix.end)
        if pages_to(sequence.prefix.end) != sequence.block_table[:shared]:
            raise IntegrityError(f"{name} does not point at its cached blocks")
        for page in sequence.block_table[shared:]:
            _claim(pool, owners, page, LIVE_KV, name)


def _claim_fetches(pool: PagePool, owners: dict[int, str], fetches: KVFetches) -> None:
    for fetch in fetches:
        for page in fetch.pages:
            _claim(pool, owners, page, LIVE_KV, f"fetch for {fetch.root.namespace}")
        waiters = fetches.waiters(fetch)
        if not waiters or any(sequence.prefix.fetch is not fetch for sequence in waiters):
            raise IntegrityError("a fetch is under way for nobody")
        if any(block.fetch is not fetch for block in fetch.blocks):
            raise IntegrityError("a block under way could be evicted from the host")


def _claim_adapters(
    pool: PagePool,
    adapters: AdapterCache,
    owners: dict[int, str],
    running: Collection[Sequence],
) -> None:
    users: Counter[tuple[str, int]] = Counter()
    for sequence in running:
        adapter = sequence.request.adapter
        if (adapter is None) != (sequence.adapter_slot == BASE_SLOT):
            raise IntegrityError("a running sequence has the wrong kind of adapter slot")
        if adapter is not None:
            users[adapter.digest, sequence.adapter_slot] += 1
    for arriving in adapters.arriving():
        for page in arriving.pages:
            _claim(pool, owners, page, ADAPTER, f"the arriving adapter {arriving.digest}")
    for resident in adapters.residents():
        for page in resident.pages:
            _claim(pool, owners, page, ADAPTER, f"adapter {resident.digest}")
        if resident.references != users.pop((resident.digest, resident.slot), 0):
            raise IntegrityError(f"wrong reference count on adapter {resident.digest}")
    if users:
        raise IntegrityError(f"sequences run on adapters that are not resident: {list(users)}")
