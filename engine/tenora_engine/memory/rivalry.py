"""Rivalry: whose giving up pages could help whom. It knows partitions, and takes nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tenora_engine.memory.adapter_cache import ResidentAdapter
from tenora_engine.memory.evictor import Evictor, Item
from tenora_engine.memory.partitions import Partition
from tenora_engine.sequence import Sequence


class Rivalry:
    """`lacking` gives the pages that a sequence needs beyond its own; `held` the adapter that a
    running one holds."""

    def __init__(
        self,
        evictor: Evictor,
        lacking: Callable[[Sequence], int],
        held: Callable[[Sequence], ResidentAdapter | None],
    ) -> None:
        self._evictor = evictor
        self._lacking = lacking
        self._held = held

    def rivals(self, sequence: Sequence, others: Collection[Sequence]) -> list[Sequence]:
        """Those of `others` whose giving up pages could help `sequence` to those it needs."""
        partitions = self._evictor.partitions
        if not partitions.has_tenants:
            return list(others)
        own, count = self._partition(sequence), self._lacking(sequence)
        compete: dict[str, bool] = {}
        for namespace in {other.request.tenant.namespace for other in others}:
            compete[namespace] = partitions.compete(own, partitions.of(namespace, "kv"), count)
        return [
            other
            for other in others
            if compete[other.request.tenant.namespace] or self._adapter_partition(other) is own
        ]

    def num_rivals(self, sequence: Sequence, others: Collection[Sequence]) -> int:
        """How many they are; `others` is all that runs. O(others) only where an adapter lies in the
        tenant's partition."""
        partitions = self._evictor.partitions
        if not partitions.has_tenants:
            return len(others)
        own = self._partition(sequence)
        if own.adapters:
            return len(self.rivals(sequence, others))
        return partitions.num_competing(own, self._lacking(sequence))

    def competes(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether `other` is a rival."""
        partitions = self._evictor.partitions
        return not partitions.has_tenants or partitions.compete(
            self._partition(sequence), self._partition(other), self._lacking(sequence)
        )

    def is_helped_by(self, sequence: Sequence, adapter: ResidentAdapter) -> bool:
        """Whether the adapter's pages could help."""
        own, its = self._partition(sequence), self._evictor.partition(adapter)
        return self._evictor.partitions.compete(own, its, self._lacking(sequence))

    def _partition(self, sequence: Sequence) -> Partition[Item]:
        return self._evictor.partitions.of(sequence.request.tenant.namespace, "kv")

    def _adapter_partition(self, sequence: Sequence) -> Partition[Item] | None:
        """In which the adapter lies that a running sequence holds; it may be another tenant's."""
        adapter = self._held(sequence)
        return None if adapter is None else self._evictor.partition(adapter)
