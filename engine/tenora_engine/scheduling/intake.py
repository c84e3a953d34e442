"""Intake: which waiting sequences start in a step, and what the next ones need is brought up before
their turn (`Prefetch`). It asks the queue for them in fair order, the loads for their adapters and
the memory for their pages."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.memory.adapter_cache import ResidentAdapter
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import AdapterRef
from tenora_engine.scheduling.admission import Feasibility
from tenora_engine.scheduling.arrival_turns import MAX_COLD_ADAPTERS, ArrivalTurns
from tenora_engine.scheduling.chunks import StepDraft
from tenora_engine.scheduling.loads import AdapterLoads
from tenora_engine.scheduling.page_shares import PAGE_PATIENCE_STEPS, PageShares
from tenora_engine.scheduling.parked import Need, Parked
from tenora_engine.scheduling.places import Places
from tenora_engine.scheduling.plan import ScheduledSequence
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.requests import Requests
from tenora_engine.scheduling.running import Holder, Running, holder_of
from tenora_engine.scheduling.slot_turns import SlotTurns
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
    place. What is parked has been near."""

    def __init__(
        self, requests: Requests, parked: Parked, loads: AdapterLoads, memory: MemoryManager
    ) -> None:
        self._requests = requests
        self._parked = parked
        self._loads = loads
        self._memory = memory
        self._seen: tuple[int, int] | None = None
        self._looked_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether anything has changed since the last look ahead, some time ago."""
        return now_s - self._looked_s >= PERIOD_S and self._state() != self._seen

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
        for fetch in memory.fetches:
            near.update(s for s in memory.fetches.waiters(fetch) if s in self._parked)
        memory.cancel_other_fetches(near)

    def _state(self) -> tuple[int, int]:
        return self._requests.changes, self._memory.fetches.num_ended


SCAN_LIMIT = 256
"""Waiting sequences looked at in one step. Where there are more, the next step leaves out the lines
in which this one has found somebody blocked."""

LINE_TRIES = 4
"""Sequences of one tenant in a class that find no pages in one step, after which no more of its
line are looked at."""

TAKERS_LIMIT = 16
"""Tenants with less than their share of the places for whom in one step nobody is found to give up
one."""

CLAIMS_LIMIT = 4
"""Sequences for which in one step others' pages are looked for, besides those that are within a
guaranteed minimum."""

CLAIM_STEPS = 8
"""Steps after which a holder for which none were found looks for them again. Where so many have
found none that they would take all of CLAIMS_LIMIT again and again, they wait for twice as long as
that takes."""

RETRY_STEPS = 16
"""How often one that found too few pages is matched against the prefix cache anew, though there are
no more than before: more of its prompt may be cached."""

RESERVE_FRACTION = 16
"""A new sequence leaves a page for each running one, up to this part of the arena."""


class _Start(enum.Enum):
    STARTED = "started"
    BLOCKED = "blocked"  # it alone cannot start
    NO_PAGES = "no pages"  # smaller ones of its tenant may find some
    SHORT = "short"  # it found no pages for long: who competes with it waits behind


@dataclass
class _Step:
    """The new sequences of one step."""

    seen: set[str] = field(default_factory=set)  # adapters of the sequences looked at
    looked_at: list[Sequence] = field(default_factory=list)
    cold_adapters: int = 0
    is_express: bool = False
    without_pages: dict[str, Sequence] = field(default_factory=dict)
    """By tenant, the first that found none."""
    tries: Counter[Holder] = field(default_factory=Counter)
    """How many of a holder found no pages."""
    planned: list[ScheduledSequence] = field(default_factory=list)
    """Prefills that are in the step already."""
    claims: int = 0
    """How many have looked for others' pages, but for those within a guaranteed minimum."""
    short: dict[str, Sequence] = field(default_factory=dict)
    """By tenant, who is not to be passed any more by those that compete with it for pages."""


class Intake:
    """Starts waiting sequences where there are places.

    Nothing that waits keeps others waiting for what they do not need. What waits for its adapter,
    for a slot, for its KV or for a way to the device is parked (`SlotTurns`, `ArrivalTurns`,
    `FairQueue.park`); what finds no pages or no place ends the
    walk along its own line only, unless it was passed for long, and then for those alone that
    compete with it for pages. So a walk costs a bounded number of tries per tenant, and no count of
    blocked sequences of some tenants ends it before it has come to the others.
    """

    def __init__(
        self,
        requests: Requests,
        queue: WaitingQueue,
        running: Running,
        places: Places,
        shares: PageShares,
        loads: AdapterLoads,
        waits: Waits,
        memory: MemoryManager,
        feasibility: Feasibility,
    ) -> None:
        self._requests = requests
        self._queue = queue
        self._running = running
        self._places = places
        self._shares = shares
        self._loads = loads
        self._waits = waits
        self._memory = memory
        self._feasibility = feasibility  # is told how fast the queue drains
        self._prefetch = Prefetch(requests, queue.parked, loads, memory)
        self._slots = SlotTurns(queue, memory, running, waits)
        self._arrivals = ArrivalTurns(queue, memory, loads)
        waits.on_load_ended = self._slots.wake
        memory.arrivals.on_cancelled = lambda digest: waits.load_changed(digest, is_coming=False)
        self._left_out: dict[Holder, None] = {}  # lines in which the last walks met who is blocked
        self._num_walks = 0
        self._claim_walks: dict[Holder, int] = {}
        """Holders for which no pages were found, and the walk in which they are looked for again.
        Not by sequence: one that is cancelled and sent again must not take others' claims."""
        self.walks_cut = 0
        """Steps in which not all were looked at that might have started in a free place."""
        self._backlog_s: float | None = None  # when the queue was last seen with something in it
        self._work = 0.0  # that has left the queue since then

    @property
    def is_open(self) -> bool:
        """Whether anything waits that might start."""
        return bool(self._queue.num_in_line) and self._places.are_open

    @property
    def is_due(self) -> bool:
        """Whether the next step may start something, though nothing runs or comes meanwhile."""
        return self._slots.is_due or self._arrivals.is_due or self._memory.adapters.keeps_any

    def begin_step(self) -> None:
        """Put back in line what may start in this step, and has been waiting for something else
        than its turn."""
        if self._memory.adapters.keeps_any:
            self._memory.adapters.begin_step()
            if not self._running:  # nobody ends who would make room for whom they are kept for
                self._memory.adapters.let_go()
        self._slots.begin_step()
        if self._places.are_open:
            self._arrivals.begin_step()

    def admit(self, draft: StepDraft, now_s: float) -> None:
        """Start waiting sequences in fair order while the draft has room, and there are places or
        some that are given up by sequences which are not in the draft yet. One whose tenant has its
        part of the step is passed over; so is, where the queue lets pass, one that finds no pages,
        but not for long: then it stops all behind it that compete for them, so that it gets
        them."""
        if (draft.room and self._places.are_open) or self._prefetch.is_due(now_s):
            self._walk(_Step(planned=draft.chunks), draft, now_s)
        if self._backlog_s is not None:
            self._feasibility.observe_drain(self._work, now_s - self._backlog_s)
        self._backlog_s = now_s if self._queue.num_in_line else None
        self._work = 0.0

    def admit_express(self, draft: StepDraft) -> None:
        """Start what waits of tenants that keep their shares, while the draft has room, and takes
        no pages that others of them lack."""
        step, memory = _Step(is_express=True), self._memory
        with closing(self._queue.express()) as express:
            for sequence in islice(express, SCAN_LIMIT):
                if not draft.room:
                    break
                is_crowding = self._places.is_crowding(holder_of(sequence))
                if is_crowding or memory.competes_with_any(sequence, step.without_pages.values()):
                    self._queue.pass_by(sequence)
                    continue
                if not (self._places.has_room(sequence) or self._places.can_lend(sequence)):
                    continue
                if not draft.room.of(sequence):
                    continue
                if self._try_start(sequence, step) is _Start.STARTED:
                    draft.add(sequence)

    def _walk(self, step: _Step, draft: StepDraft, now_s: float) -> None:
        self._num_walks += 1
        if self._claim_walks:
            due = [h for h, walk in self._claim_walks.items() if walk <= self._num_walks]
            for holder in due:
                del self._claim_walks[holder]
        goes_on = self._fill_places(step, draft)
        self._arrivals.walked()
        if goes_on and draft.room and self._places.are_full:
            self._exchange_places(step, draft)
        if self._prefetch.is_due(now_s):
            is_short = bool(step.short or step.without_pages)
            with closing(self._queue.candidates()) as candidates:
                self._prefetch.look_ahead(candidates, is_short, now_s)

    def _fill_places(self, step: _Step, draft: StepDraft) -> bool:
        """Start what waits in places that are free; returns whether anything else might start."""
        goes_on = is_whole = True
        with closing(self._queue.candidates(self._left_out)) as candidates:
            while goes_on and draft.room and not self._places.are_full:
                is_whole = len(step.looked_at) < SCAN_LIMIT
                sequence = next(candidates, None) if is_whole else None
                if sequence is None:
                    break
                step.looked_at.append(sequence)
                draft.add_before(sequence)
                goes_on = self._look_at(sequence, step, draft)
        if is_whole:
            self._left_out.clear()
        else:
            self.walks_cut += 1
            self._left_out |= dict.fromkeys(
                holder_of(sequence)
                for sequence in step.looked_at
                if sequence.state is SequenceState.WAITING and sequence not in self._queue.parked
            )
        return goes_on

    def _exchange_places(self, step: _Step, draft: StepDraft) -> None:
        """Start what waits of tenants that have less than their share of the places, in those of
        tenants that have more. One that gets none is passed by those behind it no further than the
        queue allows; so are the first of all, who may have their share."""
        self._take_beyond(step, draft)
        passed = {h.service.class_name: h for h in self._queue.heads() if not h.prefix.lacked}
        num_refused = 0
        with closing(self._queue.of(self._places.takers())) as candidates:
            for sequence in candidates:
                if not (draft.room and self._places.are_open) or num_refused == TAKERS_LIMIT:
                    break
                draft.add_before(sequence)
                has_room, giver = self._places.has_room(sequence), None
                num_running = len(self._running)
                may_pass = (self._queue.may_pass(sequence, other) for other in passed.values())
                if not has_room and all(may_pass):
                    giver = self._places.giver(sequence, draft.planned)
                if not has_room and giver is None:
                    num_refused += 1
                    passed.setdefault(sequence.service.class_name, sequence)
                    self._queue.pass_by(sequence)
                elif not self._look_at(sequence, step, draft):
                    break
                elif giver is not None and len(self._running) > num_running:
                    self._requests.give_up_place(giver)  # none was preempted for its pages

    def _take_beyond(self, step: _Step, draft: StepDraft) -> None:
        """Start what waits of tenants for which there are places beyond the capacity: nobody has to
        give one up for them, so nobody's refusal stands before them."""
        with closing(self._queue.of(self._places.newcomers())) as candidates:
            for sequence in islice(candidates, SCAN_LIMIT):
                if not draft.room:
                    break
                draft.add_before(sequence)
                if self._places.has_room(sequence) and not self._look_at(sequence, step, draft):
                    break

    def _look_at(self, sequence: Sequence, step: _Step, draft: StepDraft) -> bool:
        """Start a waiting sequence if it can be; returns whether anything behind it might."""
        if not draft.room.of(sequence):
            if not sequence.num_unscored:
                self._queue.pass_by(sequence)
            return True
        short = step.short.values()
        is_behind = self._memory.competes_with_any(sequence, short)
        if is_behind and not self._shares.may_pass(sequence, short):
            self._short_of_pages(sequence)
            self._queue.pass_by(sequence)
            return True
        outcome, holder = self._try_start(sequence, step), holder_of(sequence)
        if outcome is _Start.STARTED:
            draft.add(sequence)
        elif outcome is _Start.NO_PAGES:
            step.tries[holder] += 1
            if step.tries[holder] == LINE_TRIES:
                self._queue.pass_by(sequence)
        elif outcome is _Start.SHORT:
            step.short[sequence.request.tenant.key] = sequence
            self._queue.pass_by(sequence)
            if not (self._memory.is_partitioned or self._running.of(holder)):
                self._waits.stopped_short()
                return False
        return True

    def _try_start(self, sequence: Sequence, step: _Step) -> _Start:
        if self._still_lacks_pages(sequence) and not self._may_claim(sequence, step):
            return self._without_pages(sequence, step)
        request = sequence.request
        resident, loaded = self._memory.resident(request), None
        if request.adapter is not None:
            step.seen.add(request.adapter.digest)
            if resident is None:
                loaded = self._loaded(sequence, request.adapter, step)
        is_ahead = request.adapter is not None and resident is None and loaded is None
        fetches = self._memory.request_fetch(sequence, ahead=is_ahead, busy=bool(self._running))
        if is_ahead:
            self._arrivals.park_for_adapter(sequence)
        elif fetches:
            self._arrivals.park_for_kv(sequence)
        elif not self._slots.lacks(sequence, resident):
            return self._try_admit(sequence, resident, loaded, step)
        return _Start.BLOCKED

    def _try_admit(
        self,
        sequence: Sequence,
        resident: ResidentAdapter | None,
        loaded: LoadResult | None,
        step: _Step,
    ) -> _Start:
        """Give a sequence that lacks nothing else its pages; `loaded`: its adapter, if it is to be
        brought to the device."""
        memory = self._memory
        packed = None if loaded is None else loaded.packed
        competitors = memory.num_competitors(sequence, self._running)
        most_pages = memory.most_kv_pages(sequence.request.tenant)
        reserve = min(competitors, most_pages // RESERVE_FRACTION)
        outcome = self._take_pages(sequence, resident, loaded, step, reserve)
        if outcome is None and self._claim(sequence, packed, step):
            outcome = self._take_pages(sequence, resident, loaded, step, 0)
        if outcome is not None:
            return outcome
        if competitors or len(memory.fetches) or len(memory.arrivals) or memory.adapters.keeps_any:
            return self._without_pages(sequence, step)
        error = self._too_large(sequence, packed, resident)
        self._requests.finish(sequence, "error", error=error, fault="request", param="prompt")
        return _Start.BLOCKED

    def _take_pages(
        self,
        sequence: Sequence,
        resident: ResidentAdapter | None,
        loaded: LoadResult | None,
        step: _Step,
        reserve: int,
    ) -> _Start | None:
        """Start a sequence, or the copy of its adapter; None, and nothing changed, unless so many
        pages are left."""
        packed = None if loaded is None else loaded.packed
        load_ms = 0.0 if loaded is None else loaded.load_ms
        if packed is not None and self._memory.arrivals.is_large(packed):
            if not self._memory.try_start_copy(sequence, packed, load_ms, reserve):
                return None
            self._waits.load_changed(packed.digest, is_coming=True)
            self._queue.park(sequence, Need.ADAPTER)
            return _Start.BLOCKED
        if not self._memory.try_admit(sequence, resident, packed, load_ms, reserve):
            return None
        self._requests.started(sequence, step.is_express)
        sequence.service.page_waits = sequence.service.short_walk = 0
        self._work += sequence.service.work
        if packed is not None:
            step.cold_adapters += 1
            self._slots.wake(packed.digest)
        return _Start.STARTED

    def _may_claim(self, sequence: Sequence, step: _Step) -> bool:
        """Whether one that finds no pages may take others', or what is left for them."""
        is_due = self._num_walks >= self._claim_walks.get(holder_of(sequence), 0)
        if step.is_express or not is_due or not self._queue.lets_pass:
            return False
        if step.claims >= CLAIMS_LIMIT and not self._memory.is_guaranteed(sequence):
            return False
        return self._shares.may_take(sequence, self._waited(sequence))

    def _claim(self, sequence: Sequence, packed: PackedAdapter | None, step: _Step) -> bool:
        """Preempt others for one that finds no pages, as far as they are beyond their shares;
        returns whether it may start now."""
        if not self._may_claim(sequence, step):
            return False
        step.claims += not self._memory.is_guaranteed(sequence)
        planned = {chunk.sequence for chunk in step.planned}
        givers = self._shares.givers(sequence, packed, planned, self._waited(sequence))
        if givers is None:
            steps = max(CLAIM_STEPS, 2 * len(self._claim_walks) // CLAIMS_LIMIT)
            self._claim_walks[holder_of(sequence)] = self._num_walks + steps
            return False
        for giver in givers:
            self._requests.preempt(giver)
        return True

    def _waited(self, sequence: Sequence) -> int:
        """Steps for which it has found no pages; as if for long, where its adapter has come and is
        kept for it."""
        if self._memory.adapters.keeps_any:
            resident = self._memory.resident(sequence.request)
            if resident is not None and resident.kept_for == sequence.request.tenant.key:
                return PAGE_PATIENCE_STEPS
        return self._num_walks - (sequence.service.short_walk or self._num_walks)

    def _still_lacks_pages(self, sequence: Sequence) -> bool:
        """Whether it can be told without trying that a sequence finds no pages. While nothing runs
        each is tried, so that one which never finds any is refused."""
        if not self._running or (self._num_walks + sequence.number) % RETRY_STEPS == 0:
            return False
        return self._memory.still_lacks(sequence)

    def _without_pages(self, sequence: Sequence, step: _Step) -> _Start:
        """What waits for more memory than there is would leave it unused until all of it is free:
        smaller ones pass meanwhile."""
        self._short_of_pages(sequence)
        if not self._queue.lets_pass:
            return _Start.SHORT
        is_first = not self._memory.competes_with_any(sequence, step.without_pages.values())
        step.without_pages.setdefault(sequence.request.tenant.key, sequence)
        sequence.service.page_waits += is_first
        is_patient = sequence.service.page_waits <= PAGE_PATIENCE_STEPS
        return _Start.NO_PAGES if is_patient else _Start.SHORT

    def _short_of_pages(self, sequence: Sequence) -> None:
        self._waits.short_of_pages(sequence)
        sequence.service.short_walk = sequence.service.short_walk or self._num_walks

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
            f"{len(sequence.token_ids)} tokens need "
            f"{self._memory.blocks(len(sequence.token_ids))} pages and the adapter needs "
            f"{pages}, but this engine has {self._memory.pool.total} pages, of which the tenant "
            f"can have {self._memory.most_kv_pages(sequence.request.tenant)} for this; shorten "
            "the prompt, or give the engine more memory"
        )
