"""SlotTurns: who waits for an adapter slot, and how it comes to one where all adapters on the
device are in use. Requests for the base model never wait here, nor do those for an adapter that is
on the device and not drained."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tenora_engine.memory.adapter_cache import ResidentAdapter
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.scheduling.parked import Need
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.running import Running
from tenora_engine.scheduling.waits import Waits
from tenora_engine.sequence import Sequence, SequenceState
from tenora_kernels.segments import BASE_SLOT

SLOT_PATIENCE_STEPS = 64
"""Steps for which a sequence waits for a slot before an adapter in use is drained for it."""

OFFER_STEPS = 4
"""Steps for which a drained adapter's slot is kept for the one that it was drained for."""

DRAIN_PERIOD_STEPS = 8
"""How often it is looked whether somebody has waited so long: that is O(tenants + running)."""


@dataclass
class _Drain:
    """No request that would outlast those on `adapter` starts on it, so that `sequence` gets its
    slot."""

    adapter: ResidentAdapter
    sequence: Sequence
    steps_offered: int = 0  # since nothing runs on the adapter


class SlotTurns:
    """Parks what lacks a slot, and wakes the first of each tenant when there may be one.

    A stream of requests for an adapter on the device could keep its slot for ever. So where a
    sequence has waited SLOT_PATIENCE_STEPS, one adapter is *drained*, and its slot goes to who is
    next in fair order. New requests for it wait, as if it were not on the device, but for those
    that end before what runs on it anyway (as in EASY backfilling: Lifka, "The ANL/IBM SP
    scheduling system", 1995): nobody waits while the slot could not be given up yet. Nor does
    anybody wait for one that could not take the slot: a drain ends when the sequence lacks its
    adapter again, or has left the slot unused for OFFER_STEPS.

    It is one of a tenant that uses at least two slots more than the waiting one, or of anybody
    where that one uses none, or of its own: nobody takes slots from tenants that have no more than
    it has. Of equal ones it is that which is free first.
    """

    def __init__(
        self, queue: WaitingQueue, memory: MemoryManager, running: Running, waits: Waits
    ) -> None:
        self._queue = queue
        self._memory = memory
        self._running = running
        self._waits = waits
        self._drain: _Drain | None = None
        self._step = 0
        self._seen = 0  # slots given up
        self._may_be_free = False

    def begin_step(self) -> None:
        """Wake who may get a slot in this step, and drain an adapter where that is due. O(1) while
        nothing waits for a slot, else O(tenants that do)."""
        self._step += 1
        self._end_drain()
        parked, given_up = self._queue.parked, self._memory.adapters.slots_given_up
        if given_up != self._seen:
            self._seen, self._may_be_free = given_up, True
        if not parked.waits_for(Need.SLOT):
            return
        if self._may_be_free:
            woken = [s for s in parked.firsts(Need.SLOT) if self._can_have_slot(s)]
            for sequence in woken:
                self._wake(sequence)
            self._may_be_free = bool(woken)
        elif self._drain is None and self._step % DRAIN_PERIOD_STEPS == 0:
            self._begin_drain()

    @property
    def is_due(self) -> bool:
        """Whether the next step may change who waits for a slot, though nothing runs or comes."""
        if self._drain is not None and not self._drain.adapter.references:
            return True
        return self._may_be_free and self._queue.parked.waits_for(Need.SLOT)

    def lacks(self, sequence: Sequence, resident: ResidentAdapter | None) -> bool:
        """Whether a sequence, whose adapter is `resident` or not, has to wait for a slot. It is
        parked then."""
        if sequence.request.adapter is None:
            return False
        if resident is not None:
            if self._drain is None or self._drain.adapter is not resident:
                return False
            on_slot = (each for each in self._running if each.adapter_slot == resident.slot)
            if _most_left(sequence) < max(map(_most_left, on_slot), default=0):
                return False
            self._waits.short_of_slots(sequence)
            self._queue.park(sequence, Need.ADAPTER)  # until the drain ends
            return True
        if self._can_have_slot(sequence):
            return False
        if not sequence.service.slot_step:
            sequence.service.slot_step = self._step
        self._waits.short_of_slots(sequence)
        self._queue.park(sequence, Need.SLOT)
        return True

    def wake(self, digest: str) -> None:
        """Put back in line all that is parked for an adapter: it has come, or does not come."""
        for sequence in self._queue.parked.of(digest):
            self._wake(sequence)

    def _can_have_slot(self, sequence: Sequence) -> bool:
        return self._memory.can_have_slot(sequence.request.tenant)

    def _wake(self, sequence: Sequence) -> None:
        self._queue.wake(sequence)
        self._waits.woken(sequence)

    def _begin_drain(self) -> None:
        """For the first in turn for which there is an adapter to be drained."""
        waits_long = [
            sequence
            for sequence in self._queue.parked.firsts(Need.SLOT)
            if self._step - sequence.service.slot_step >= SLOT_PATIENCE_STEPS
            and not self._memory.still_lacks(sequence)
        ]
        for sequence in sorted(waits_long, key=self._queue.turn):
            adapter = self._giver(sequence)
            if adapter is not None:
                self._drain = _Drain(adapter, sequence)
                return

    def _end_drain(self) -> None:
        drain = self._drain
        if drain is None:
            return
        adapter, sequence, parked = drain.adapter, drain.sequence, self._queue.parked
        is_there = self._memory.adapters.get(adapter.digest, adapter.scope) is adapter
        if is_there and sequence.state is SequenceState.WAITING:
            drain.steps_offered += not adapter.references
            lacks_adapter = sequence in parked and not parked.is_for(sequence, Need.SLOT)
            is_offered = not adapter.pinned and drain.steps_offered <= OFFER_STEPS
            if is_offered and not lacks_adapter:
                return
            sequence.service.slot_step = self._step  # others' turn
        self._drain = None
        self.wake(adapter.digest)

    def _giver(self, sequence: Sequence) -> ResidentAdapter | None:
        """The adapter to be drained for a sequence: of who uses the most slots, the one that is
        free first."""
        own = sequence.request.tenant.key
        users: dict[int, set[str]] = defaultdict(set)  # tenants by slot
        left: Counter[int] = Counter()  # tokens until the slot is free, at most
        for other in self._running:
            slot = other.adapter_slot
            if slot != BASE_SLOT:
                users[slot].add(other.request.tenant.key)
                left[slot] = max(left[slot], _most_left(other))
        held = Counter(tenant for tenants in users.values() for tenant in tenants)
        best: tuple[int, int] | None = None
        giver = None
        for adapter in self._memory.slot_holders(sequence.request.tenant):
            tenants = users.get(adapter.slot)
            if not tenants or adapter.pinned:
                continue
            least = 0 if tenants == {own} else min(held[tenant] for tenant in tenants)
            if tenants != {own} and held[own] and least <= held[own] + 1:
                continue
            key = least, -left[adapter.slot]
            if best is None or key > best:
                best, giver = key, adapter
        return giver


def _most_left(sequence: Sequence) -> int:
    """Tokens that it may generate yet."""
    return sequence.max_length - len(sequence.token_ids)
