"""AdapterSlots: whether a tenant can have a slot for one more adapter, and which adapter would go
for it. It gives nothing up itself."""

from __future__ import annotations

from tenora_engine.memory.adapter_cache import AdapterCache, ResidentAdapter
from tenora_engine.memory.evictor import Evictor


class AdapterSlots:
    def __init__(self, adapters: AdapterCache, evictor: Evictor) -> None:
        self._adapters = adapters
        self._evictor = evictor

    def most(self, namespace: str) -> int:
        """Adapters that a tenant can have on the device."""
        return self._evictor.partitions.of(namespace, "adapter").max_slots

    def can_have(self, namespace: str) -> bool:
        """Whether a slot is free or could be made so."""
        return self._is_free(namespace) or bool(self._idle(namespace))

    def victim(self, namespace: str) -> ResidentAdapter | None:
        """What is to be evicted so that a slot is free; None if one is."""
        return None if self._is_free(namespace) else self._evictor.least(self._idle(namespace))

    def _is_free(self, namespace: str) -> bool:
        partition = self._evictor.partitions.of(namespace, "adapter")
        return self._adapters.has_free_slot and partition.adapters < partition.max_slots

    def _idle(self, namespace: str) -> list[ResidentAdapter]:
        """Those that may be evicted for a slot: in strict mode the tenant's own, else rather not
        those of a tenant that holds no more than its minimum."""
        partitions, partition_of = self._evictor.partitions, self._evictor.partition
        own = partitions.of(namespace, "adapter")
        idle = [item for item in self._adapters.residents() if item.is_idle]
        if own.hard:
            return [item for item in idle if partition_of(item) is own]
        rather = [i for i in idle if partition_of(i) is own or partition_of(i).surplus(False)]
        return rather or idle
