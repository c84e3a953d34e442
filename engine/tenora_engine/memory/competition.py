"""Competition: whose giving up pages could help a sequence to those it lacks. It knows partitions
and adapters, and frees nothing."""

from __future__ import annotations

from collections.abc import Collection

from tenora_engine.memory.adapter_cache import AdapterCache, ResidentAdapter
from tenora_engine.memory.evictor import Evictor, Item
from tenora_engine.memory.partitions import Partition
from tenora_engine.sequence import Sequence


class Competition:
    """A running sequence gives up its KV, and what an adapter takes that nobody else uses."""

    def __init__(self, evictor: Evictor, adapters: AdapterCache, block_tokens: int) -> None:
        self._evictor = evictor
        self._partitions = evictor.partitions
        self._adapters = adapters
        self._block_tokens = block_tokens

    def among(self, sequence: Sequence, running: Collection[Sequence]) -> list[Sequence]:
        """Those of `running` that compete with the sequence."""
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

    def count(self, sequence: Sequence, running: Collection[Sequence]) -> int:
        """How many they are among all that run. O(running) only where an adapter lies in the
        sequence's partition."""
        if not self._partitions.has_tenants:
            return len(running)
        num = self._partitions.num_competing(self._own(sequence), self._lacks(sequence))
        slots = self._slots(sequence)
        if slots:
            holders = [other for other in running if other.adapter_slot in slots]
            num += sum(not self.includes(sequence, other) for other in holders)
        return num

    def includes(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether the KV of `other` lies where pages could help the sequence."""
        if not self._partitions.has_tenants:
            return True
        own, its = self._own(sequence), self._own(other)
        return self._partitions.compete(own, its, self._lacks(sequence))

    def includes_adapter(self, sequence: Sequence, adapter: ResidentAdapter) -> bool:
        """Whether the adapter's pages could help the sequence."""
        its = self._evictor.partition(adapter)
        return self._partitions.compete(self._own(sequence), its, self._lacks(sequence))

    def _own(self, sequence: Sequence) -> Partition[Item]:
        return self._partitions.of(sequence.request.tenant.namespace, "kv")

    def _lacks(self, sequence: Sequence) -> int:
        blocks = -(-len(sequence.token_ids) // self._block_tokens)
        return blocks - len(sequence.block_table)

    def _slots(self, sequence: Sequence) -> set[int]:
        """Of the adapters in the sequence's partition, whoever uses them."""
        own = self._own(sequence)
        if not own.adapters:
            return set()
        residents = self._adapters.residents()
        return {item.slot for item in residents if self._evictor.partition(item) is own}
