"""Room: whether a waiting sequence could have the pages that it needs. It frees nothing."""

from __future__ import annotations

from collections import Counter

from tenora_engine.memory.adapter_cache import ResidentAdapter
from tenora_engine.memory.evictor import Evictor, Item
from tenora_engine.memory.partitions import Partition
from tenora_engine.memory.prefix import PrefixNode, path
from tenora_engine.sequence import Sequence


def can_admit(
    evictor: Evictor,
    sequence: Sequence,
    end: PrefixNode | None,
    resident: ResidentAdapter | None,
    kv_pages: int,
    adapter_pages: int,
) -> bool:
    """Whether there are so many pages, free or by eviction, beside its cached prefix up to `end`
    and its adapter, which it would make use of."""
    namespace = sequence.request.tenant.namespace
    held: Counter[Partition[Item]] = Counter()
    for node in path(end):
        if not node.references:
            held[evictor.partition(node)] += len(node.pages)
    if resident is not None and resident.is_idle:
        held[evictor.partition(resident)] += len(resident.pages)
    kv = evictor.partitions.of(namespace, "kv")
    others = evictor.partitions.of(namespace, "adapter")
    if kv is others:
        kv_pages += adapter_pages
    elif adapter_pages > evictor.partitions.available(others, adapter_pages, held):
        return False
    return kv_pages <= evictor.partitions.available(kv, kv_pages, held)
