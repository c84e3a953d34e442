"""PageView: what the arena holds, in two parts: a copy of the bookkeeping, which is taken between
two steps and costs them little, and what is made of it, in any other thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tenora_engine.memory.adapter_cache import AdapterCache, ResidentAdapter
from tenora_engine.memory.evictor import Evictor
from tenora_engine.memory.forecast import Describe, forecast
from tenora_engine.memory.pinning import Pinning
from tenora_engine.memory.pool import ADAPTER, CACHED_KV, FREE, LIVE_KV, PagePool
from tenora_engine.memory.prefix import PrefixTree
from tenora_engine.pages import ArenaAdapter, Departure, PageOwner, PartitionPages

_KIND_OF = {FREE: 0, LIVE_KV: 1, CACHED_KV: 2, ADAPTER: 3}


@dataclass(frozen=True)
class PageView:
    """As it was at `at_s`. Nothing in it changes any more."""

    at_s: float
    policy: str
    marks: tuple[bytes, bytes, bytes]  # see `PagePool.marks`
    roots: dict[int, tuple[str, str]]
    adapters: Sequence[tuple[ArenaAdapter, Sequence[int]]]  # with their pages
    partitions: list[PartitionPages]
    departures: list[Departure]
    pinned_pages: int
    pinnable_pages: int

    def runs(self) -> tuple[list[int], list[int], list[PageOwner]]:
        """Pages by kind, the runs and the owners, as in `ArenaPages`. O(pages), in numpy."""
        kinds = _kinds(self.marks[0])
        owners = np.frombuffer(self.marks[1], np.uint32).copy()
        since = np.frombuffer(self.marks[2], np.uint32).copy()
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
    pool: PagePool,
    tree: PrefixTree,
    adapters: AdapterCache,
    evictor: Evictor,
    describe: Describe,
    pinning: Pinning,
    namespace: str,
) -> PageView:
    """Copies of the bookkeeping, and what `namespace` would push out next. On the engine's thread:
    O(adapters and partitions), and a copy of nine bytes a page."""
    return PageView(
        at_s=now_s,
        policy=evictor.policy_name,
        marks=pool.marks(),
        roots=tree.owners.copy(),
        adapters=[
            *((_adapter(each, False), each.pages) for each in adapters.residents()),
            *((_adapter(each, True), each.pages) for each in adapters.arriving()),
        ],
        partitions=_partitions(evictor),
        departures=forecast(evictor, pool, describe, evictor.partitions.of(namespace, "kv")),
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
