"""PageClaim: what one that waits lacks of pages, and how many of it the preemption of others would
give. Which of them are preempted, others decide."""

from __future__ import annotations

from collections import Counter

from tenora_engine.memory.adapter_cache import ResidentAdapter
from tenora_engine.memory.evictor import Item
from tenora_engine.memory.partitions import Partition, Partitions
from tenora_engine.memory.prefix import num_blocks, path
from tenora_engine.sequence import Sequence

WITHIN_MIN, BETWEEN, ABOVE_MAX = range(3)


def rank_of(partition: Partition[Item], more: int = 0) -> int:
    """Where a partition stands between its bounds; within its minimum if it is with so many pages
    more."""
    if not partition.hard:
        if partition.used + more <= partition.min_pages:
            return WITHIN_MIN
        if partition.used > partition.max_pages:
            return ABOVE_MAX
    return BETWEEN


def is_within_min(partition: Partition[Item], more: int) -> bool:
    """Whether a partition's live pages and so many more are no more than it is guaranteed."""
    live = partition.used - partition.evictable_pages + more
    return not partition.hard and live <= partition.min_pages


def held_pages(sequence: Sequence, adapter: ResidentAdapter | None) -> tuple[float, int]:
    """Pages that a running sequence holds, of those that it shares a part, and how many others
    could have if it gave up its own; with those of the adapter that it uses."""
    end, gain = sequence.prefix.end, len(sequence.block_table)
    gain -= num_blocks(end)
    held = float(gain)
    shared = [(len(node.pages), node.references) for node in path(end)]
    if adapter is not None and not adapter.pinned:
        shared.append((len(adapter.pages), adapter.references))
    for num_pages, references in shared:
        held += num_pages / references
        gain += num_pages if references == 1 else 0
    return held, gain


class PageClaim:
    """For `pages` in the partition `own`, of which `missing` are neither free nor evictable."""

    def __init__(
        self,
        partitions: Partitions[Item],
        own: Partition[Item],
        pages: int,
        spoken_for: Counter[Partition[Item]],
    ) -> None:
        """`spoken_for`: the evictable pages that it makes use of, by partition."""
        self.pages = pages
        self.missing = pages - partitions.available(own, pages, spoken_for)
        more = pages + spoken_for[own]
        self.is_within_min = is_within_min(own, more)
        self._partitions = partitions
        self._own = own
        live = own.used - own.evictable_pages + more
        self._is_beyond_max = not own.hard and live > own.max_pages
        self._given: Counter[Partition[Item]] = Counter()

    def has_to_give(self, rank: int) -> bool:
        """Whether who is of this rank gives whatever it holds."""
        if self.is_within_min:
            return rank >= BETWEEN
        return rank == ABOVE_MAX and not self._is_beyond_max

    def give(self, sequence: Sequence, gain: int) -> int:
        """A running sequence would leave so many pages evictable; returns how many of them help."""
        partition = self._partitions.of(sequence.request.tenant.namespace, "kv")
        if partition is not self._own:
            beyond_max = self._is_beyond_max
            left = partition.surplus(beyond_max) - partition.takeable(beyond_max)
            gain = min(gain, left - self._given[partition])
        self._given[partition] += gain
        return gain
