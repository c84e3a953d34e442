"""Scheduler: what each step runs (`schedule`) and what came of it (`commit`). Iteration-level
batching: decode first, then prefill chunks, then new sequences in fair order. It knows tokens and
pages by number, never tensors."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from itertools import islice

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.client import AbortReason
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import AdapterLoadError, InvalidRequestError
from tenora_engine.events import Event, FinishReason, Residency, TokenEvent, TokenLogprob
from tenora_engine.memory.adapter_cache import ResidentAdapter
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.scheduling.admission import check_request, make_sequences
from tenora_engine.scheduling.flights import Flight, finish_event
from tenora_engine.scheduling.loads import AdapterLoads, Loader
from tenora_engine.scheduling.meters import Counters
from tenora_engine.scheduling.plan import ScheduledSequence, StepPlan, StepResult
from tenora_engine.scheduling.queue import FairQueue
from tenora_engine.sequence import Sequence, SequenceState

SCAN_LIMIT = 256
"""Waiting sequences looked at in one step."""

SLOT_PATIENCE_STEPS = 64
"""Steps in which others may pass a sequence that lacks nothing but an adapter slot."""

RESERVE_FRACTION = 16
"""A new sequence leaves a page for each running one, up to this part of the arena."""


class _Start(enum.Enum):
    STARTED = "started"
    BLOCKED = "blocked"  # it alone cannot start
    FULL = "full"  # nothing behind it may start either


class Scheduler:
    """Owns all sequences from `submit` to their FinishEvent. Every sequence gets exactly one."""

    def __init__(
        self,
        config: ResolvedConfig,
        memory: MemoryManager,
        loader: Loader,
        clock: Callable[[], float] = time.time,
    ) -> None:
        engine = config.engine
        self._config = config
        self._memory = memory
        self._loader = loader
        self._clock = clock
        self._block_tokens = engine.block_tokens
        self._max_running = min(engine.max_running, engine.max_step_tokens)
        self._max_step_tokens = engine.max_step_tokens
        self._max_chunk = engine.max_prefill_chunk
        self._context_tokens = config.model.context_tokens
        self._loads = AdapterLoads(loader, memory.adapters, memory.costs, clock)
        self._queue = FairQueue(engine.max_waiting)
        self._running: dict[Sequence, None] = {}  # in order of admission
        self._flights: dict[str, Flight] = {}
        self._doomed: set[str] = set()  # digests to forget once nobody uses them
        self._events: list[Event] = []
        self._counters = Counters()
        self._num_held = 0  # siblings that wait for their first sequence's prefill
        self._num_sequences = 0
        self._load_ended = False
        self._stalled = False  # all that waits, waits for adapter loads

    @property
    def running(self) -> dict[Sequence, None]:
        """The sequences that hold pages, in order of admission. To be read only."""
        return self._running

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + self._num_held

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        if self._events or self._running or self._load_ended:
            return True
        return bool(len(self._queue)) and not self._stalled

    def waiting_by_tenant(self) -> dict[str, int]:
        waiting = self._queue.waiting_by_tenant()
        for flight in self._flights.values():
            if flight.held:
                key = flight.request.tenant.key
                waiting[key] = waiting.get(key, 0) + len(flight.held)
        return waiting

    def counters(self) -> dict[str, float]:
        return {
            **{f"loader_{name}": value for name, value in self._loader.counters().items()},
            **vars(self._counters),
            "adapter_loads": self._loads.num_loads,
            "adapter_evictions": self._memory.adapter_evictions,
            "kv_evictions": self._memory.kv_evictions,
        }

    @property
    def loads(self) -> AdapterLoads:
        return self._loads

    def note_load_ended(self) -> None:
        """May be called from any thread."""
        self._load_ended = True

    def residency(self, ref: AdapterRef) -> Residency:
        if self._memory.adapters.get(ref.digest) is not None:
            return "device"
        return self._loader.residency(ref)

    def submit(self, request: GenerationRequest) -> None:
        """See `Engine.submit`."""
        check_request(self._config, request)
        if request.request_id in self._flights:
            raise InvalidRequestError(
                f"request {request.request_id} is already in flight; use a new id", "request_id"
            )
        self._queue.check_room(request.sampling.n, self._num_held)
        adapter = request.adapter
        residency = None if adapter is None else self.residency(adapter)
        now_s = self._clock()
        sequences = make_sequences(self._config, request, self._num_sequences, residency, now_s)
        self._num_sequences += len(sequences)
        held = sequences[1:] if self._config.engine.prefix_caching else []
        self._flights[request.request_id] = Flight(request, list(sequences), held)
        self._num_held += len(held)
        for sequence in sequences:
            self._memory.enter(sequence)
            if adapter is not None:
                self._memory.adapters.want(adapter.digest)
        for sequence in sequences[: len(sequences) - len(held)]:
            self._queue.push(sequence)
        if adapter is not None and residency != "device":
            self._loads.request(adapter)
        self._stalled = False

    def abort(
        self,
        request_id: str,
        index: int | None,
        reason: AbortReason,
        output_tokens: int | None,
    ) -> None:
        """See `Engine.abort`."""
        flight = self._flights.get(request_id)
        if flight is None:
            return
        for sequence in list(flight.sequences):
            if index is None or sequence.index == index:
                self._finish(
                    sequence,
                    "stop" if reason == "stop" else "abort",
                    output_tokens=output_tokens,
                )

    def forget_adapter(self, namespace: str, digest: str) -> None:
        """See `Engine.forget_adapter`."""
        self._memory.tree.purge(namespace, digest)
        self._doomed.add(digest)
        self._bury(digest)

    def schedule(self) -> StepPlan:
        """Decide the next step and allocate its pages. O(running), and O(SCAN_LIMIT) when there
        is room for new sequences."""
        self._load_ended = False
        self._take_loads()
        self._grow()
        items: list[ScheduledSequence] = []
        budget = self._plan_running(items)
        if len(self._queue):
            self._admit(items, budget)
        items.sort(key=_slot)
        self._stalled = not items and not self._events
        return StepPlan(tuple(items))

    def commit(self, plan: StepPlan, result: StepResult, step_s: float) -> list[Event]:
        """Take in what a step computed, `step_s` seconds in all. Sequences that ended meanwhile
        are passed over."""
        now_s = self._clock()
        self._counters.steps += 1
        self._memory.costs.observe_step(plan.num_tokens, len(plan.scheduled), step_s)
        results = zip(plan.scheduled, result.token_ids, result.logprobs, strict=True)
        for item, token_ids, logprobs in results:
            sequence = item.sequence
            if sequence.state is not SequenceState.RUNNING:
                continue
            sequence.num_computed += item.num_tokens
            self._memory.cache_blocks(sequence)
            if token_ids:
                self._append(sequence, token_ids, logprobs, now_s)
        return self.take_events()

    def fail(self, plan: StepPlan, error: Exception) -> list[Event]:
        """The step raised: its sequences end in "error"; what earlier steps computed stays."""
        self._counters.step_failures += 1
        for item in plan.scheduled:
            if item.sequence.state is SequenceState.RUNNING:
                message = f"the step failed: {type(error).__name__}: {error}"
                self._finish(item.sequence, "error", error=message)
        return self.take_events()

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _plan_running(self, items: list[ScheduledSequence]) -> int:
        """Plan the running sequences into `items`; returns the tokens left of the step."""
        prefills: list[Sequence] = []
        for sequence in self._running:
            if sequence.num_uncomputed == 1:
                items.append(ScheduledSequence(sequence, 1, True))
            else:
                prefills.append(sequence)
        budget = self._max_step_tokens - len(items)
        for sequence in prefills:
            budget -= self._plan_chunk(items, sequence, budget)
        return budget

    def _plan_chunk(self, items: list[ScheduledSequence], sequence: Sequence, budget: int) -> int:
        left = sequence.num_uncomputed
        num_tokens = min(left, self._max_chunk, budget)
        if num_tokens > 0:
            items.append(ScheduledSequence(sequence, num_tokens, num_tokens == left))
        return num_tokens

    def _grow(self) -> None:
        """A page for each sequence whose next token begins a block; preempt where none is left."""
        size = self._block_tokens
        short = [s for s in self._running if len(s.block_table) * size < len(s.token_ids)]
        for sequence in short:
            while sequence.state is SequenceState.RUNNING and not self._memory.try_grow(
                sequence, len(sequence.token_ids)
            ):
                if len(self._running) == 1:  # it has all there is
                    self._finish(sequence, "length")
                else:
                    self._preempt(max(self._running, key=_expendable))

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of its tenant's queue; its full blocks stay cached, so that computing
        it again costs little as long as they are."""
        del self._running[sequence]
        self._memory.release(sequence)
        sequence.state = SequenceState.WAITING
        if sequence.request.adapter is not None:
            self._memory.adapters.want(sequence.request.adapter.digest)
        self._queue.push_front(sequence)
        self._counters.preemptions += 1

    def _admit(self, items: list[ScheduledSequence], budget: int) -> None:
        """Start waiting sequences in fair order while there is room. One whose adapter is loading
        is passed over; one that finds no pages stops all behind it, so that it gets them."""
        seen: set[str] = set()
        for sequence in islice(self._queue.candidates(), SCAN_LIMIT):
            if budget <= 0 or len(self._running) >= self._max_running:
                return
            outcome = self._try_start(sequence, seen)
            if outcome is _Start.FULL:
                return
            if outcome is _Start.STARTED:
                budget -= self._plan_chunk(items, sequence, budget)

    def _try_start(self, sequence: Sequence, seen: set[str]) -> _Start:
        adapter, adapters = sequence.request.adapter, self._memory.adapters
        resident = loaded = None
        if adapter is not None:
            seen.add(adapter.digest)
            resident = adapters.get(adapter.digest)
        if adapter is not None and resident is None:
            loaded = self._loads.request(adapter, keep=seen)
            if loaded is None:
                self._take_loads()  # a host hit is complete at once
                loaded = self._loads.ready(adapter.digest)
            if loaded is None:
                return _Start.BLOCKED
            if not self._memory.can_have_slot:
                sequence.slot_waits += 1
                return _Start.FULL if sequence.slot_waits > SLOT_PATIENCE_STEPS else _Start.BLOCKED
        packed = None if loaded is None else loaded.packed
        load_ms = 0.0 if loaded is None else loaded.load_ms
        reserve = min(len(self._running), self._memory.pool.total // RESERVE_FRACTION)
        if self._memory.try_admit(sequence, resident, packed, load_ms, reserve):
            self._started(sequence)
            return _Start.STARTED
        if self._running:
            return _Start.FULL
        self._finish(sequence, "error", error=self._too_large(sequence, packed, resident))
        return _Start.BLOCKED

    def _started(self, sequence: Sequence) -> None:
        request = sequence.request
        self._queue.remove(sequence)
        self._running[sequence] = None
        sequence.state = SequenceState.RUNNING
        sequence.encoded = b""
        sequence.slot_waits = 0
        if request.adapter is not None:
            self._loads.discard(request.adapter.digest)
            self._memory.adapters.unwant(request.adapter.digest)
        if sequence.admitted_s is not None:
            return  # it was preempted: queueing, prefill and cache hits are metered once
        sequence.admitted_s = self._clock()
        self._queue.charge_prefill(request.tenant, sequence.num_uncomputed)
        if request.adapter is not None and sequence.residency != "device":
            resident = self._memory.adapters.get(request.adapter.digest)
            sequence.adapter_load_ms = 0.0 if resident is None else resident.load_ms
        if sequence.index == 0:
            sequence.cached_tokens = sequence.num_computed
            self._counters.prompt_tokens += sequence.num_prompt
            self._counters.cached_tokens += sequence.cached_tokens

    def _append(
        self,
        sequence: Sequence,
        token_ids: list[int],
        logprobs: list[TokenLogprob] | None,
        now_s: float,
    ) -> None:
        """New tokens of a sequence, up to the one that ends it."""
        request = sequence.request
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        length = min(sequence.num_prompt + request.sampling.max_tokens, self._context_tokens)
        added, stop = 0, None
        for token_id in token_ids:
            sequence.token_ids.append(token_id)
            added += 1
            if token_id in sequence.stop_ids:
                stop = token_id
            if stop is not None or len(sequence.token_ids) >= length:
                break
        self._counters.output_tokens += added
        self._queue.charge_decode(request.tenant, added)
        shown = added if stop is None else added - 1
        if shown:
            self._events.append(
                TokenEvent(
                    request.request_id,
                    sequence.index,
                    token_ids[:shown],
                    None if logprobs is None else logprobs[:shown],
                )
            )
        if stop is not None:
            self._finish(sequence, "stop", stop_token_id=stop)
        elif len(sequence.token_ids) >= length:
            self._finish(sequence, "length")
        if sequence.index == 0 and self._num_held:
            self._release_held(self._flights.get(request.request_id))

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        output_tokens: int | None = None,
        error: str | None = None,
        stop_token_id: int | None = None,
    ) -> None:
        """End a sequence, wherever it is, give back what it holds and make its last event."""
        flight = self._flights[sequence.request.request_id]
        adapter = sequence.request.adapter
        if sequence.state is SequenceState.RUNNING:
            del self._running[sequence]
            self._memory.release(sequence)
        else:
            if sequence in flight.held:
                flight.held.remove(sequence)
                self._num_held -= 1
            else:
                self._queue.remove(sequence)
            if adapter is not None:
                self._memory.adapters.unwant(adapter.digest)
        sequence.state = SequenceState.FINISHED
        self._memory.leave(sequence)
        self._events.append(
            finish_event(
                flight,
                sequence,
                reason,
                self._clock(),
                output_tokens=output_tokens,
                error=error,
                stop_token_id=stop_token_id,
            )
        )
        flight.sequences.remove(sequence)
        if sequence.index == 0:
            self._release_held(flight)
        if not flight.sequences:
            del self._flights[sequence.request.request_id]
            self._counters.requests_finished += 1
            self._counters.requests_aborted += reason == "abort"
        if adapter is not None:
            self._bury(adapter.digest)

    def _release_held(self, flight: Flight | None) -> None:
        """Let the siblings of a sequence 0 queue: its prompt's blocks are cached, or it ended."""
        if flight is None or not flight.held:
            return
        for sequence in reversed(flight.held):
            self._queue.push_front(sequence)
        self._num_held -= len(flight.held)
        flight.held.clear()
        self._stalled = False

    def _take_loads(self) -> None:
        """Take in finished loads; what failed ends the sequences that wait for it, only those."""
        for digest, error in self._loads.poll():
            self._fail_waiting(digest, error)

    def _fail_waiting(self, digest: str, error: AdapterLoadError) -> None:
        for flight in list(self._flights.values()):
            adapter = flight.request.adapter
            if adapter is None or adapter.digest != digest:
                continue
            for sequence in list(flight.sequences):
                if sequence.state is SequenceState.WAITING:
                    self._finish(sequence, "error", error=str(error))

    def _bury(self, digest: str) -> None:
        """Drop a forgotten adapter from every tier once nobody uses it."""
        if digest in self._doomed and not self._memory.adapters.is_used(digest):
            self._doomed.discard(digest)
            self._memory.drop_adapter(digest)
            self._loads.discard(digest)
            self._loader.forget(digest)

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
            f"pages and the adapter {pages}, more than the {self._memory.pool.total} pages of this "
            "engine; shorten the prompt or give the engine more memory"
        )


def _slot(item: ScheduledSequence) -> int:
    return item.sequence.adapter_slot


def _expendable(sequence: Sequence) -> tuple[float, int]:
    """The largest is preempted first: the latest arrived of the least urgent."""
    tpot_ms = sequence.request.tenant.tpot_ms
    return (float("inf") if tpot_ms is None else tpot_ms, sequence.number)
