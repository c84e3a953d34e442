"""Intake: which waiting sequences start in a step, and what the next ones need is brought up before
their turn (`Prefetch`). It asks the queue for them in fair order, the loads for their adapters and
the memory for their pages."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.memory.adapter_cache import ResidentAdapter
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import AdapterRef
from tenora_engine.scheduling.admission import Feasibility
from tenora_engine.scheduling.chunks import StepDraft
from tenora_engine.scheduling.loads import AdapterLoads
from tenora_engine.scheduling.places import Places
from tenora_engine.scheduling.plan import ScheduledSequence
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.requests import Requests
from tenora_engine.scheduling.running import Holder, Running, holder_of
from tenora_engine.scheduling.waits import Waits
from tenora_engine.sequence import Sequence, SequenceState

if TYPE_CHECKING:
    from tenora_engine.adapters.loader import LoadResult

LOOK_AHEAD = 32
"""Waiting sequences whose turn is near."""

PERIOD_S = 0.02
"""At most so often: looking along the queue takes longer than a small model's step should wait."""


class Prefetch:
    """What is on its way for a sequence whose turn is not near any more makes room: a fetch of KV
    at once, for it holds pages; an adapter that is not loading yet when a nearer one needs its
    place."""

    def __init__(self, requests: Requests, loads: AdapterLoads, memory: MemoryManager) -> None:
        self._requests = requests
        self._loads = loads
        self._memory = memory
        self._seen: tuple[int, int] | None = None
        self._looked_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether anything has changed since the last look ahead, some time ago."""
        return not 0 <= now_s - self._looked_s < PERIOD_S and self._state() != self._seen

    def look_ahead(
        self, sequences: Iterable[Sequence], memory_is_short: bool, now_s: float
    ) -> None:
        """`sequences` wait, in the order in which their turns are expected. Where one of them lacks
        pages, none are taken for those behind it. O(LOOK_AHEAD), and nothing unless it is due."""
        memory, loads = self._memory, self._loads
        if not self.is_due(now_s):
            return
        self._seen, self._looked_s = self._state(), now_s
        near: set[Sequence] = set()
        digests: set[str] = set()
        for sequence in islice(sequences, LOOK_AHEAD):
            if sequence.state is not SequenceState.WAITING:
                continue
            near.add(sequence)
            request = sequence.request
            if request.adapter is not None and self._memory.resident(request) is None:
                digests.add(request.adapter.digest)
                loads.request(request.adapter, request.tenant.key, digests)
            if not memory_is_short:
                memory.request_fetch(sequence, ahead=True)
        memory.cancel_other_fetches(near)

    def _state(self) -> tuple[int, int]:
        return self._requests.changes, self._memory.fetches.num_ended


SCAN_LIMIT = 256
"""Waiting sequences looked at in one step."""

SLOT_PATIENCE_STEPS = 64
"""Steps in which others may pass a sequence that lacks nothing but an adapter slot."""

PAGE_PATIENCE_STEPS = 64
"""Steps in which others may pass the first of those that compete for pages and find none."""

SHORT_LIMIT = 16
"""Sequences that find no pages in one step, or tenants that find no place, after which nothing more
is looked at."""

MAX_COLD_ADAPTERS = 4
"""Small adapters copied to the device in one step: the running sequences wait for the copies."""

RESERVE_FRACTION = 16
"""A new sequence leaves a page for each running one, up to this part of the arena."""


class _Start(enum.Enum):
    STARTED = "started"
    BLOCKED = "blocked"  # it alone cannot start
    SHORT = "short"  # it lacks memory and was passed long enough: who competes with it waits behind


@dataclass
class _Step:
    """The new sequences of one step."""

    planned: Collection[ScheduledSequence] = ()  # of what ran before
    seen: set[str] = field(default_factory=set)  # adapters of the sequences looked at
    cold_adapters: int = 0
    is_express: bool = False
    without_pages: list[Sequence] = field(default_factory=list)
    passed: dict[str, Sequence] = field(default_factory=dict)
    """By class, the first that found no place."""
    without_place: set[Holder] = field(default_factory=set)


class Intake:
    """Starts waiting sequences where there are places."""

    def __init__(
        self,
        requests: Requests,
        queue: WaitingQueue,
        running: Running,
        places: Places,
        loads: AdapterLoads,
        waits: Waits,
        memory: MemoryManager,
        feasibility: Feasibility,
    ) -> None:
        self._requests = requests
        self._queue = queue
        self._running = running
        self._places = places
        self._loads = loads
        self._waits = waits
        self._memory = memory
        self._feasibility = feasibility  # is told how fast the queue drains
        self._prefetch = Prefetch(requests, loads, memory)
        self._backlog_s: float | None = None  # when the queue was last seen with something in it
        self._work = 0.0  # that has left the queue since then

    @property
    def is_open(self) -> bool:
        """Whether anything waits that might start."""
        return bool(len(self._queue)) and self._places.are_open

    def admit(self, draft: StepDraft, now_s: float) -> None:
        """Start waiting sequences in fair order while the draft has room, and there are places or
        some that are given up by sequences which are not in the draft yet. One whose adapter is
        loading or whose tenant has its part of the step is passed over; so is, where the
        queue lets pass, one that finds no pages, but not for long: then it stops all behind it that
        compete for them, so that it gets them."""
        if (draft.room and self._places.are_open) or self._prefetch.is_due(now_s):
            self._walk(_Step(draft.chunks), draft, now_s)
        if self._backlog_s is not None:
            self._feasibility.observe_drain(self._work, now_s - self._backlog_s)
        self._backlog_s = now_s if len(self._queue) else None
        self._work = 0.0

    def admit_express(self, draft: StepDraft) -> None:
        """Start what waits of tenants that keep their shares, while the draft has room and nothing
        is short of memory."""
        step = _Step(is_express=True)
        with closing(self._queue.express()) as express:
            for sequence in islice(express, SCAN_LIMIT):
                if not draft.room or step.without_pages:
                    break
                if self._places.is_crowding(holder_of(sequence)):
                    continue
                if self._places.are_full and not self._places.can_lend(sequence):
                    continue
                if not draft.room.of(sequence):
                    continue
                if self._try_start(sequence, step) is _Start.STARTED:
                    draft.add(sequence)

    def _walk(self, step: _Step, draft: StepDraft, now_s: float) -> None:
        compete = self._memory.compete
        short: list[Sequence] = []
        passed: list[Sequence] = []
        with closing(self._queue.candidates()) as candidates:
            scan = islice(candidates, SCAN_LIMIT)
            while draft.room and self._places.are_open:
                sequence = next(scan, None)
                if sequence is None:
                    break
                passed.append(sequence)
                draft.add_before(sequence)
                if not draft.room.of(sequence):
                    continue
                if short and any(compete(s, sequence) for s in short):
                    self._waits.short_of_pages(sequence)
                    continue
                outcome = self._try_place(sequence, step)
                if outcome is _Start.STARTED:
                    draft.add(sequence)
                elif outcome is _Start.SHORT:
                    short.append(sequence)
                    if not self._memory.is_partitioned:
                        self._waits.stopped_short()
                        break
                if len(step.without_pages) >= SHORT_LIMIT:
                    self._waits.stopped_short()
                    break
                if len(step.without_place) >= SHORT_LIMIT:
                    break
            is_short = bool(short or step.without_pages)
            self._prefetch.look_ahead(chain(passed, scan), is_short, now_s)

    def _try_place(self, sequence: Sequence, step: _Step) -> _Start:
        """Start the sequence, where the places are full in that of another. One that gets none is
        passed by those behind it no further than the queue allows."""
        if not self._places.are_full:
            return self._try_start(sequence, step)
        holder, giver = holder_of(sequence), None
        if holder in step.without_place:
            return _Start.BLOCKED
        if all(self._queue.may_pass(sequence, other) for other in step.passed.values()):
            giver = self._places.giver(sequence, {chunk.sequence for chunk in step.planned})
        if giver is None:
            step.passed.setdefault(sequence.service.class_name, sequence)
            step.without_place.add(holder)
            return _Start.BLOCKED
        outcome = self._try_start(sequence, step)
        if outcome is _Start.STARTED:
            self._requests.give_up_place(giver)
        return outcome

    def _try_start(self, sequence: Sequence, step: _Step) -> _Start:
        adapter = sequence.request.adapter
        resident, loaded = self._memory.resident(sequence.request), None
        if adapter is not None:
            step.seen.add(adapter.digest)
        lacks_adapter = adapter is not None and resident is None
        if adapter is not None and resident is None:
            loaded = self._loaded(sequence, adapter, step)
        is_ahead = lacks_adapter and loaded is None
        fetches = self._memory.request_fetch(sequence, ahead=is_ahead, busy=bool(self._running))
        if is_ahead or fetches:
            return _Start.BLOCKED
        if lacks_adapter and not self._memory.can_have_slot(sequence.request.tenant):
            sequence.service.slot_waits += 1
            self._waits.short_of_slots(sequence)
            return (
                _Start.SHORT
                if sequence.service.slot_waits > SLOT_PATIENCE_STEPS
                else _Start.BLOCKED
            )
        packed = None if loaded is None else loaded.packed
        load_ms = 0.0 if loaded is None else loaded.load_ms
        arrivals = self._memory.arrivals
        competitors = self._memory.num_competitors(sequence, self._running)
        most_pages = self._memory.most_kv_pages(sequence.request.tenant)
        reserve = min(competitors, most_pages // RESERVE_FRACTION)
        if packed is not None and arrivals.is_large(packed):
            if self._memory.try_start_copy(sequence, packed, load_ms, reserve):
                self._waits.load_changed(packed.digest, is_coming=True)
                return _Start.BLOCKED
        elif self._memory.try_admit(sequence, resident, packed, load_ms, reserve):
            self._requests.started(sequence, step.is_express)
            sequence.service.page_waits = 0
            self._work += sequence.service.work
            step.cold_adapters += packed is not None
            return _Start.STARTED
        if competitors or len(self._memory.fetches) or len(arrivals):
            return self._without_pages(sequence, step)
        error = self._too_large(sequence, packed, resident)
        self._requests.finish(sequence, "error", error=error, fault="request", param="prompt")
        return _Start.BLOCKED

    def _without_pages(self, sequence: Sequence, step: _Step) -> _Start:
        """What waits for more memory than there is would leave it unused until all of it is free:
        smaller ones pass meanwhile."""
        self._waits.short_of_pages(sequence)
        if not self._queue.lets_pass:
            return _Start.SHORT
        is_first = not any(self._memory.compete(s, sequence) for s in step.without_pages)
        step.without_pages.append(sequence)
        sequence.service.page_waits += is_first
        return _Start.SHORT if sequence.service.page_waits > PAGE_PATIENCE_STEPS else _Start.BLOCKED

    def _loaded(self, sequence: Sequence, adapter: AdapterRef, step: _Step) -> LoadResult | None:
        """The adapter, if it can be installed or begin to be copied in this step; else it is on its
        way."""
        loads, tenant_key = self._loads, sequence.request.tenant.key
        if self._memory.is_arriving(sequence.request):
            return None
        loaded = loads.request(adapter, tenant_key, step.seen)
        if loaded is None:
            self._requests.take_loads()  # a host hit is complete at once
            loaded = loads.ready(adapter.digest)
        if loaded is None or loaded.packed is None:
            return None
        arrivals = self._memory.arrivals
        if arrivals.is_large(loaded.packed):
            return None if arrivals.is_full(tenant_key) else loaded
        return loaded if step.cold_adapters < MAX_COLD_ADAPTERS else None

    def _too_large(
        self,
        sequence: Sequence,
        packed: PackedAdapter | None,
        resident: ResidentAdapter | None,
    ) -> str:
        pages = 0 if packed is None else packed.num_pages
        if resident is not None:
            pages = len(resident.pages)
        return (
            f"{len(sequence.token_ids)} tokens need {self._memory.blocks(len(sequence.token_ids))} "
            f"pages and the adapter {pages}, more than the "
            f"{self._memory.pool.total} pages of this engine, of which the tenant can have "
            f"{self._memory.most_kv_pages(sequence.request.tenant)} for it; "
            "shorten the prompt or give the engine more memory"
        )
