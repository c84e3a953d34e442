"""Scheduler: what each step runs (`schedule`) and what came of it (`commit`). Iteration-level
batching: decode first, then prefill as far as the decoding can wait, then new sequences in fair
order. It knows tokens and pages by number, never tensors."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection

from tenora_engine.config import ResolvedConfig
from tenora_engine.events import Event, TokenEvent, TokenLogprob
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.chunks import ChunkSizer, PrefillRoom, plan_chunk
from tenora_engine.scheduling.class_queue import CLASS_WEIGHTS, service_class
from tenora_engine.scheduling.express import ExpressLane
from tenora_engine.scheduling.intake import Intake
from tenora_engine.scheduling.loads import Loader
from tenora_engine.scheduling.meters import meter_first_token
from tenora_engine.scheduling.places import Places
from tenora_engine.scheduling.plan import PlanWriter, ScheduledSequence, ScheduledStep
from tenora_engine.scheduling.requests import RequestBook
from tenora_engine.sequence import Sequence, SequenceState
from tenora_engine.step import EndedCopy, StepPlan, StepResult

IDLE_S_MAX = 3600.0
"""A deadline may be further away than threads can wait for."""


class Scheduler:
    """Plans the steps of the sequences in a RequestBook, in the memory of a MemoryManager."""

    def __init__(
        self,
        config: ResolvedConfig,
        memory: MemoryManager,
        loader: Loader,
        clock: Callable[[], float] = time.time,
        *,
        can_preempt: bool = False,  # the executor its steps, for what comes meanwhile
    ) -> None:
        engine = config.engine
        self._memory = memory
        self._loader = loader
        self._clock = clock
        self._block_tokens = engine.block_tokens
        self._max_step_tokens = engine.max_step_tokens
        self._keeps_promises = engine.scheduling_policy == "sla"
        self._max_chunk = (
            engine.max_prefill_chunk if self._keeps_promises else engine.max_step_tokens
        )
        self._book = RequestBook(config, memory, loader, clock)
        self._queue = self._book.queue
        self._running = self._book.running
        # A step in which everybody decodes has a token left for who takes a place.
        capacity = max(min(engine.max_running, engine.max_step_tokens - 1), 1)
        self._places = Places(self._book, capacity, engine.block_tokens, engine.prefix_caching)
        self._intake = Intake(self._book, memory, self._places)
        self._chunks = ChunkSizer(memory.costs)
        self._express: ExpressLane | None = None
        if can_preempt and self._keeps_promises:
            self._express = ExpressLane(
                config, self._book, self._intake, self._places, self._chunks
            )
        self._plans = PlanWriter(engine.block_tokens, config.model.vocab, engine.seed)
        self._in_flight: dict[int, ScheduledStep] = {}  # by the number of their plan
        self._load_ended = False
        self._fetches_ended = 0  # of those the scheduler knows
        self._stalled = False  # all that waits, waits for adapter loads

    @property
    def book(self) -> RequestBook:
        """What waits and what runs."""
        return self._book

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        if self._book.events or self._running or self._load_ended:
            return True
        if self._fetches_ended != self._memory.fetches.num_ended or self._memory.operations:
            return True
        if self._stalled:
            return self._book.deadlines.next_s < self._clock()
        return bool(len(self._queue))

    @property
    def idle_s(self) -> float | None:
        """See `Engine.idle_s`."""
        seconds = self._book.deadlines.next_s - self._clock()
        return None if seconds == math.inf else min(max(seconds, 0.0), IDLE_S_MAX)

    def counters(self) -> dict[str, float]:
        return {
            **{f"loader_{name}": value for name, value in self._loader.counters().items()},
            **vars(self._book.counters),
            **self._book.telemetry.totals(),
            "adapter_loads": self._book.loads.num_loads,
            "adapter_evictions": self._memory.allocator.adapter_evictions,
            "kv_evictions": self._memory.allocator.kv_evictions,
            **self._memory.fetches.counters(),
            **self._memory.arrivals.counters(),
        }

    def note_load_ended(self) -> None:
        """May be called from any thread."""
        self._load_ended = True

    def submit(self, request: GenerationRequest) -> None:
        """See `Engine.submit`."""
        self._book.submit(request)
        if self._keeps_promises:
            self._chunks.promises.observe(request.tenant, self._clock())
        self._stalled = False

    def schedule(self, copies: Collection[EndedCopy] = ()) -> StepPlan:
        """Decide the next step and allocate its pages, now that `copies` have ended; while one is
        in flight (`commit` or `fail` ends it), what may be run before it goes on. A plan is to be
        executed before the next is asked for. O(running), and O(SCAN_LIMIT) when there is room for
        new sequences."""
        preempted = next(iter(self._in_flight.values()), None)
        step, is_preemptible = self._next_step(preempted, copies)
        plan = self._plans.write(step, is_preemptible, self._memory.operations.take())
        if step.items:
            self._in_flight[plan.number] = step
        return plan

    def scheduled(self, plan: StepPlan) -> ScheduledStep:
        """The sequences of a plan in flight. Raises KeyError when it is not."""
        return self._in_flight[plan.number]

    def _next_step(
        self, preempted: ScheduledStep | None, copies: Collection[EndedCopy]
    ) -> tuple[ScheduledStep, bool]:
        """And whether it may be preempted."""
        self._load_ended = False
        self._book.take_loads()
        self._book.take_copies(copies)
        self._fetches_ended = self._memory.fetches.num_ended
        now_s = self._clock()
        self._book.give_up_late(now_s)
        if self._express is not None:
            express = self._express.plan(preempted, now_s)
            if express or preempted is not None:
                self._stalled = False
                self._book.waits.plan_express(express or preempted or ())
                return ScheduledStep(express), False
        for sequence in self._places.take_back():
            self._book.give_up_place(sequence)
        self._grow()
        chunks: list[ScheduledSequence] = []
        room, passed = self._plan_running(chunks, now_s)

        def plan_running(sequence: Sequence) -> None:
            if sequence.state is SequenceState.RUNNING:  # it has not given up its place
                plan_chunk(chunks, sequence, room)

        def plan_before(sequence: Sequence) -> None:
            while passed and self._queue.turn(passed[0]) <= self._queue.turn(sequence):
                plan_running(passed.popleft())

        def plan_new(sequence: Sequence) -> None:
            plan_chunk(chunks, sequence, room)

        self._intake.admit(room, now_s, plan_before, plan_new, chunks)
        for sequence in passed:
            plan_running(sequence)
        self._book.waits.plan(chunks, self._running, self._places.are_full)
        self._book.waits.gaps.look(self._queue, now_s)
        rows = self._running.rows(chunks)
        self._stalled = not (rows or self._book.events)
        is_preemptible = self._express is not None and self._express.may_pass(chunks, now_s)
        return ScheduledStep(rows), is_preemptible

    def is_express(self, request: GenerationRequest) -> bool:
        """Whether a step is to be preempted for the request, if it can be; from any thread."""
        tenant, name = request.tenant, service_class(request.tenant.tier)
        is_crowding = self._places.is_crowding((name, tenant.key))
        return not is_crowding and self._queue.keeps_share(tenant, name)

    def commit(self, plan: StepPlan, result: StepResult, step_s: float) -> list[Event]:
        """Take in what a step computed, `step_s` seconds in all. Sequences that ended meanwhile
        are passed over."""
        now_s, step = self._clock(), self._in_flight.pop(plan.number)
        self._book.counters.steps += 1
        self._memory.costs.observe_step(step.num_tokens, len(step), step_s)
        if step.is_decode:
            self._chunks.observe_decode(step_s)
        else:
            self._chunks.observe_prefill(step.num_tokens - len(step), step_s)
        self._book.charges.observe_step(step_s)
        add, output_tokens = self._book.events.append, 0
        results = zip(step.items, result.token_ids, result.logprobs, strict=True)
        for item, new, logprobs in results:
            sequence = item.sequence
            if sequence.quiet and len(new) == 1 and new[0] not in sequence.stop_ids:
                sequence.quiet -= 1
                sequence.num_computed += 1
                sequence.token_ids.append(new[0])
                output_tokens += 1
                add(TokenEvent(sequence.request.request_id, sequence.index, new, logprobs))
            elif sequence.state is SequenceState.RUNNING:
                output_tokens += self._take_in(item, new, logprobs, now_s)
        self._book.counters.output_tokens += output_tokens
        return self.take_events()

    def fail(self, plan: StepPlan, error: Exception) -> list[Event]:
        """The step raised: its sequences end in "error"; what earlier steps computed stays."""
        self._book.counters.step_failures += 1
        for item in self._in_flight.pop(plan.number):
            if item.sequence.state is SequenceState.RUNNING:
                message = f"the step failed: {type(error).__name__}: {error}"
                self._book.finish(item.sequence, "error", error=message)
        return self.take_events()

    def take_events(self) -> list[Event]:
        events = self._book.events.copy()
        self._book.events.clear()
        return events

    def _plan_running(
        self, chunks: list[ScheduledSequence], now_s: float
    ) -> tuple[PrefillRoom, deque[Sequence]]:
        """Plan what prefills into `chunks`, in fair order, beside what decodes. Returns the room
        left for new ones, and the prefills that stand behind some of what waits, in order."""
        prefills = self._running.prefilling()
        most = tokens = arrival_tokens = self._max_step_tokens - self._running.num_decoding
        if prefills or self._intake.is_open:
            tokens = self._chunks.prefill_tokens(self._running.most_urgent(now_s), now_s, most)
            if self._chunks.promises.num_tenants(now_s) > self._queue.num_backlogged:
                arrival_tokens = self._chunks.arrival_tokens(now_s, most)
        tenant_tokens = self._max_chunk if self._book.has_several_tenants else tokens
        room = PrefillRoom(tokens, tenant_tokens, arrival_tokens, self._queue.exceeds_share)
        prefills.sort(key=self._queue.turn)
        left = deque(prefills)
        first = self._queue.first_turn() if self._intake.is_open else None
        while left and (first is None or self._queue.turn(left[0]) <= first):
            plan_chunk(chunks, left.popleft(), room)
        return room, left

    def _grow(self) -> None:
        """A page for each sequence whose next token begins a block; preempt where none is left."""
        short = self._running.take_short()
        if len(short) > 1:
            self._memory.make_room(short)
        for sequence in short:
            while sequence.state is SequenceState.RUNNING and not self._memory.try_grow(
                sequence, len(sequence.token_ids)
            ):
                # What runs comes before what is to run.
                if self._memory.fetches.cancel() or self._memory.cancel_arrival(sequence):
                    continue
                competitors = self._memory.competitors(sequence, self._running)
                if len(competitors) == 1:  # it has all there is for it
                    self._book.finish(sequence, "length")
                else:
                    self._book.preempt(min(competitors, key=_loss))

    def _take_in(
        self,
        item: ScheduledSequence,
        new: list[int],
        logprobs: list[TokenLogprob] | None,
        now_s: float,
    ) -> int:
        """What a step computed of a running sequence; returns how many tokens were added."""
        sequence = item.sequence
        sequence.num_computed += item.num_tokens
        if item.num_tokens > 1 or sequence.first_token_s is None:  # its output when it stops
            self._memory.cache_blocks(sequence)
        if item.num_tokens > 1 or sequence.num_computed % self._block_tokens == 0:
            self._book.settle(sequence)
        added = self._append(sequence, new, logprobs, now_s) if new else 0
        if sequence.state is SequenceState.RUNNING:
            self._running.advanced(sequence)
        return added

    def _append(
        self,
        sequence: Sequence,
        token_ids: list[int],
        logprobs: list[TokenLogprob] | None,
        now_s: float,
    ) -> int:
        """New tokens of a sequence, up to the one that ends it; returns how many."""
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
            meter_first_token(sequence, now_s)
            self._book.prompt_computed(sequence)
        tokens, stop, added = sequence.token_ids, None, 0
        for token_id in token_ids:
            tokens.append(token_id)
            added += 1
            if token_id in sequence.stop_ids:
                stop = token_id
                break
            if len(tokens) >= sequence.max_length:
                break
        shown = added if stop is None else added - 1
        if shown < len(token_ids):
            token_ids = token_ids[:shown]
            logprobs = None if logprobs is None else logprobs[:shown]
        if shown:
            request, is_first = sequence.request, sequence.num_output == added
            tier = sequence.tier if is_first and sequence.tier != request.tenant.tier else None
            self._book.events.append(
                TokenEvent(request.request_id, sequence.index, token_ids, logprobs, tier)
            )
        if stop is not None:
            self._book.finish(sequence, "stop", stop_token_id=stop)
        elif len(tokens) >= sequence.max_length:
            self._book.finish(sequence, "length")
        return added


def _loss(sequence: Sequence) -> tuple[float, int, float, int]:
    """What preempting a sequence costs; the least goes first: of the lowest class the one with the
    least to compute again, then the one with the slackest deadline, then the latest."""
    return (
        CLASS_WEIGHTS[sequence.service_class],
        sequence.num_computed,
        -sequence.tpot_s,
        -sequence.number,
    )
