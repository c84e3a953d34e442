"""Scheduler: what each step runs (`schedule`) and what came of it (`commit`). Iteration-level
batching: decode first, then prefill as far as the decoding can wait, then new sequences in fair
order. It knows tokens and pages by number, never tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from tenora_engine.clocks import Clock, steady
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import UNTOLD_LOGPROB, Event, TokenEvent, TokenLogprob
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.admission import Gate
from tenora_engine.scheduling.beams import Beams
from tenora_engine.scheduling.chunks import ChunkSizer, PrefillRoom, PrefillTimes, StepDraft
from tenora_engine.scheduling.class_queue import service_class
from tenora_engine.scheduling.drafts import Drafts
from tenora_engine.scheduling.express import ExpressLane
from tenora_engine.scheduling.forecast import load_of
from tenora_engine.scheduling.in_flight import StepsInFlight
from tenora_engine.scheduling.intake import Intake
from tenora_engine.scheduling.loads import AdapterLoads, Loader
from tenora_engine.scheduling.meters import Charges, meter_first_token
from tenora_engine.scheduling.own_layers import OwnLayers
from tenora_engine.scheduling.page_shares import PageShares
from tenora_engine.scheduling.pins import Pins
from tenora_engine.scheduling.places import Places
from tenora_engine.scheduling.plan import PlanWriter, ScheduledSequence, ScheduledStep
from tenora_engine.scheduling.queue import make_queue
from tenora_engine.scheduling.requests import Requests
from tenora_engine.scheduling.running import Running, Standings
from tenora_engine.scheduling.tpot_promises import FirstTokens
from tenora_engine.scheduling.wait_accounts import WaitNames
from tenora_engine.scheduling.waits import Waits
from tenora_engine.sequence import Sequence, SequenceState
from tenora_engine.step import EndedCopy, StepPlan, StepResult
from tenora_engine.telemetry import Telemetry, TelemetryStats
from tenora_kernels.compiled.decoder import NO_NUMBER

if TYPE_CHECKING:
    from tenora_engine.grammar.guide import Guide

IDLE_S_MAX = 3600.0
"""A deadline may be further away than threads can wait for."""


class Scheduler:
    """Puts the parts together, and asks them in turn what a step runs."""

    def __init__(
        self,
        config: ResolvedConfig,
        memory: MemoryManager,
        loader: Loader,
        clock: Clock = steady,
        *,
        can_preempt: bool = False,  # the executor its steps, for what comes meanwhile
        is_exact: bool = False,  # the executor: drafts show in no answer
        layers: OwnLayers | None = None,
    ) -> None:
        engine, costs = config.engine, memory.costs
        self._memory = memory
        self._clock = clock
        self._block_tokens = engine.block_tokens
        self._max_step_tokens = engine.max_step_tokens
        self._keeps_promises = engine.scheduling_policy == "sla"
        self._max_chunk = (
            engine.max_prefill_chunk if self._keeps_promises else engine.max_step_tokens
        )
        self.telemetry = telemetry = Telemetry(engine.metrics_tenants)
        names = WaitNames(telemetry)
        standings = Standings(names)
        self.waits = waits = Waits(names, standings, memory, clock)
        self.loads = loads = AdapterLoads(loader, memory, telemetry, waits, clock)
        self.pins = pins = Pins(memory, loads)
        self.charges = charges = Charges(config, costs)
        self.queue = queue = make_queue(config, standings)
        self.running = running = Running(engine.block_tokens, standings)
        self.gate = gate = Gate(config, memory, queue, charges)
        self.drafts = drafts = Drafts(config, memory, is_exact, layers)
        self.requests = Requests(
            config,
            memory,
            queue,
            running,
            gate,
            loads,
            pins,
            charges,
            drafts,
            waits,
            telemetry,
            clock,
        )
        self._beams = Beams(config, memory, self.requests, running, clock)
        self._places = places = Places(config, queue, running, standings)
        self._page_shares = shares = PageShares(memory, running, standings)
        self._intake = Intake(
            self.requests, queue, running, places, shares, loads, waits, memory, gate.feasibility
        )
        self._chunks = ChunkSizer(
            costs, max_step_tokens=engine.max_step_tokens, is_cuda=engine.device == "cuda"
        )
        self._first_tokens = FirstTokens()
        self._express: ExpressLane | None = None
        if can_preempt and self._keeps_promises:
            self._express = ExpressLane(config, queue, running, self._intake, places, self._chunks)
        writer = PlanWriter(engine.block_tokens, config.model.vocab, engine.seed)
        self.in_flight = StepsInFlight(writer, self.requests)
        self._is_behind = False  # the device works on a step that has been committed
        self._load_ended = False
        self._fetches_ended = 0  # of those the scheduler knows
        self._stalled = False  # all that waits, waits for adapter loads

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        if self.requests.events or self.running or self._load_ended:
            return True
        if self._fetches_ended != self._memory.fetches.num_ended or self._memory.operations:
            return True
        if self.requests.bills.next_s < self._clock():
            return True
        if self._stalled:
            return self.requests.deadlines.next_s < self._clock()
        return bool(len(self.queue))

    @property
    def idle_s(self) -> float | None:
        """See `Engine.idle_s`."""
        next_s = min(self.requests.deadlines.next_s, self.requests.bills.next_s)
        seconds = next_s - self._clock()
        return None if seconds == math.inf else min(max(seconds, 0.0), IDLE_S_MAX)

    def counters(self) -> dict[str, float]:
        return {
            **vars(self.requests.counters),
            **self.drafts.counters(),
            "walks_cut": self._intake.walks_cut,
            "express_steps": 0 if self._express is None else self._express.num_planned,
            **self.telemetry.totals(),
            **self.loads.counters(),
            "adapter_evictions": self._memory.allocator.adapter_evictions,
            "kv_evictions": self._memory.allocator.kv_evictions,
            **self._memory.fetches.counters(),
            **self._memory.arrivals.counters(),
        }

    def telemetry_stats(self) -> TelemetryStats:
        gaps, bounds = self.queue.service_gaps(), self.queue.service_bounds()
        stats, recent = self.queue.stats(self._clock()), self.waits.gaps.recent()
        return self.telemetry.snapshot(stats, gaps, bounds, self.waits.totals(), recent)

    def note_load_ended(self) -> None:
        """May be called from any thread."""
        self._load_ended = True

    def submit(
        self, request: GenerationRequest, guides: Items[Guide] = (), prepared: bytes | None = None
    ) -> None:
        """See `Engine.submit`."""
        self.requests.submit(request, guides, prepared)
        if self._keeps_promises:
            first = self.requests.flights[request.request_id].sequences[0]
            is_relegated = first.service.tier != request.tenant.tier
            self._chunks.promises.observe(request.tenant, self._clock(), is_relegated=is_relegated)
            if request.tenant.ttft_ms is not None and not is_relegated:
                self._first_tokens.add(first, request.tenant.ttft_ms / 1000)
        self._stalled = False

    def schedule(self, copies: Collection[EndedCopy] = ()) -> StepPlan:
        """Decide the next step and allocate its pages, now that `copies` have ended; while one is
        in flight (`commit` or `fail` ends it), what may be run before it goes on. A plan is to be
        executed before the next is asked for. O(running), and O(SCAN_LIMIT) when there is room for
        new sequences."""
        step, is_preemptible = self._next_step(self.in_flight.first, copies)
        return self.in_flight.begin(step, is_preemptible, self._memory.operations.take())

    def scheduled(self, plan: StepPlan) -> ScheduledStep:
        """The sequences of a plan in flight. Raises KeyError when it is not."""
        return self.in_flight.step(plan)

    def _next_step(
        self, preempted: ScheduledStep | None, copies: Collection[EndedCopy]
    ) -> tuple[ScheduledStep, bool]:
        """And whether it may be preempted."""
        self._load_ended = False
        self.requests.take_loads()
        self.requests.take_copies(copies)
        self._fetches_ended = self._memory.fetches.num_ended
        now_s = self._clock()
        self.requests.give_up_late(now_s)
        self.requests.settle_late()
        self.running.prefilling()  # who has had its first token decodes from here on
        is_at_risk = self._first_tokens.is_any_at_risk(now_s, self._keeps_share, self._lacks_time)
        self._chunks.begin_step(self.running.promised_tpots, now_s, is_first_at_risk=is_at_risk)
        if self._express is not None:
            express = self._express.plan(preempted, now_s)
            if express or preempted is not None:
                self._stalled = False
                self.waits.plan_express(express or preempted or ())
                return ScheduledStep(express), False
        admitted, kept = self._chunks.tpots.most_rows(now_s)
        self._places.limit(admitted, kept, self._chunks.forecast.row_s)
        for sequence in self._places.take_back():
            self.requests.give_up_place(sequence)
        self._page_shares.begin_step()
        self._grow()
        self._intake.begin_step()
        draft = self._plan_running(now_s)
        self._intake.admit(draft, now_s)
        draft.add_rest()
        chunks = draft.chunks
        self.waits.plan(chunks, self.running, self._places.are_full)
        self.waits.gaps.look(self.queue, now_s, self._memory.unix_offset)
        rows, proposals = self.running.rows(chunks), None
        if self.running.num_decoding:
            urgent = self.running.most_urgent(now_s)
            slack_s = self._chunks.slack_s(urgent, self.running.num_decoding, now_s)
            rows = self.drafts.add(rows, slack_s, others_wait=bool(len(self.queue)))
            proposals = self.drafts.wanted(rows)
        self._stalled = not (rows or self.requests.events or self._intake.is_due)
        is_preemptible = self._express is not None and self._express.may_pass(chunks, now_s)
        return ScheduledStep(rows, proposals), is_preemptible

    def _keeps_share(self, sequence: Sequence) -> bool:
        """Whether its tenant asks for no more than its share."""
        tenant, name = sequence.request.tenant, sequence.service.class_name
        is_crowding = self._places.is_crowding((name, tenant.key))
        return not is_crowding and self.queue.keeps_share(tenant, name)

    def _lacks_time(self, sequence: Sequence) -> bool:
        """Whether nothing but a step's time is missing to its first token: no adapter, no pages."""
        return sequence not in self.queue.parked and not sequence.service.short_walk

    def is_express(self, request: GenerationRequest) -> bool:
        """Whether a step is to be preempted for the request, if it can be; from any thread."""
        tenant, name = request.tenant, service_class(request.tenant.tier)
        is_crowding = self._places.is_crowding((name, tenant.key))
        return not is_crowding and self.queue.keeps_share(tenant, name)

    def commit(self, plan: StepPlan, result: StepResult, step_s: float | None) -> list[Event]:
        """Take in what a step computed, `step_s` seconds in all, or None where it is not known
        since nobody waited for it: nothing is learned of it, nor of the next one, which waits for
        both. Sequences that ended meanwhile
        are passed over."""
        now_s, step = self._clock(), self.in_flight.take(plan)
        self.requests.counters.steps += 1
        if step_s is not None:
            self.charges.observe_step(step_s)
            if not self._is_behind:
                self._observe(step, step_s, result)
        self._is_behind = step_s is None
        add, output_tokens = self.requests.events.append, 0
        self._tell_embeddings(step, result)
        results = zip(step.items, result.token_ids, result.logprobs, strict=True)
        for item, new, logprobs in results:
            sequence = item.sequence
            if (
                sequence.num_uneventful
                and len(new) == 1
                and not item.drafts
                and new[0] not in sequence.stop_ids
                and new[0] != NO_NUMBER
            ):
                sequence.num_uneventful -= 1
                sequence.num_computed += 1
                sequence.token_ids.append(new[0])
                output_tokens += 1
                add(TokenEvent(sequence.request.request_id, sequence.index, new, logprobs))
            elif sequence.state is SequenceState.RUNNING:
                output_tokens += self._take_in(item, new, logprobs, now_s)
        if self._beams.delivered:
            output_tokens += self._beams.advance()
        self.requests.counters.output_tokens += output_tokens
        for row, proposed in result.proposals.items():
            self.drafts.take(step.items[row].sequence, proposed)
        return self.take_events()

    def _tell_embeddings(self, step: ScheduledStep, result: StepResult) -> None:
        for row, embedding in result.embeddings.items():
            sequence = step.items[row].sequence
            if sequence.state is SequenceState.RUNNING and NO_NUMBER not in result.token_ids[row]:
                if not 0 < math.hypot(*embedding) < math.inf:
                    self._fail_weights(
                        sequence, "the hidden state has no direction (it is zero, NaN or infinite)"
                    )
                    continue
                request_id = sequence.request.request_id
                self.requests.events.append(
                    TokenEvent(request_id, sequence.index, [], embedding=embedding)
                )

    def _observe(self, step: ScheduledStep, step_s: float, result: StepResult) -> None:
        self._memory.costs.observe_step(step.num_tokens, len(step), step_s)
        self._chunks.observe(load_of(step), step_s - result.proposing_s)
        if step.is_decode:
            self.drafts.observe_step(step, step_s, result)

    def fail(self, plan: StepPlan, errors: Mapping[int, str]) -> list[Event]:
        """The step raised by these rows: see `StepsInFlight.fail`. What was computed of the others
        is to be committed."""
        self.requests.counters.step_failures += 1
        self.in_flight.fail(plan, errors)
        return self.take_events()

    def take_events(self) -> list[Event]:
        events = self.requests.events.copy()
        self.requests.events.clear()
        return events

    def _plan_running(self, now_s: float) -> StepDraft:
        """What prefills, in fair order, beside what decodes; those that stand behind some of what
        waits come later (`StepDraft.add_before`)."""
        prefills = self.running.prefilling()
        times = PrefillTimes()
        if prefills or self._intake.is_open:
            times = self._prefill_times(now_s)
        most = self._max_step_tokens - self.running.num_decoding
        room = PrefillRoom(most, times, self._chunks, self.queue, now_s)
        prefills.sort(key=self.queue.turn)
        first = self.queue.first_turn() if self._intake.is_open else None
        now = 0
        while now < len(prefills) and (first is None or self.queue.turn(prefills[now]) <= first):
            now += 1
        draft = StepDraft(room, self.queue, prefills[now:])
        for sequence in prefills[:now]:
            draft.add(sequence)
        return draft

    def _prefill_times(self, now_s: float) -> PrefillTimes:
        """Of the next step."""
        chunks, num_decoding = self._chunks, self.running.num_decoding
        most = self._max_step_tokens - num_decoding
        step_s = chunks.step_s(self.running.most_urgent(now_s), num_decoding, now_s, most)
        tenant_s = arrival_s = long_s = math.inf
        num_tenants = chunks.promises.num_tenants(now_s)
        if num_tenants > max(self.queue.num_backlogged, 1):
            arrival_s = chunks.arrival_s(num_decoding, now_s, most)
        if num_tenants > 1:
            long_s = min(arrival_s, chunks.tenant_s(self._max_chunk))
        if self._keeps_promises and self.requests.has_several_tenants:
            tenant_s = chunks.tenant_s(self._max_chunk)
            long_s = min(long_s, chunks.beside_s(num_decoding, most))
        return PrefillTimes(step_s, tenant_s, arrival_s, long_s)

    def _grow(self) -> None:
        """A page for each sequence whose next token begins a block; preempt where none is left."""
        short = self.running.take_short()
        if len(short) > 1:
            self._memory.make_room(short)
        for sequence in short:
            while sequence.state is SequenceState.RUNNING and not self._memory.try_grow(
                sequence, len(sequence.token_ids)
            ):
                self._make_way(sequence)

    def _make_way(self, sequence: Sequence) -> None:
        """What takes pages that a running sequence lacks gives some of them up. Of one tenant what
        runs comes before what is to run."""
        memory, tenant_key = self._memory, sequence.request.tenant.key
        if memory.cancel_coming(sequence, tenant_key):
            return
        victim = self._page_shares.victim(sequence)
        if victim is None:
            if not memory.cancel_coming(sequence):  # it has all there is for it
                self.requests.finish(sequence, "length")
        elif not memory.cancel_coming(sequence, victim.request.tenant.key):
            self.requests.preempt(victim)

    def _fail_weights(
        self, sequence: Sequence, what: str = "the logits are NaN or infinite"
    ) -> None:
        """Whatever was taken for its token, or its embedding, would mean nothing."""
        adapter = sequence.request.adapter
        whose = "the base model" if adapter is None else f"the adapter {adapter.digest}"
        error = f"{whose} produces {what}"
        self.requests.finish(sequence, "error", error=error, fault="weights")

    def _take_in(
        self,
        item: ScheduledSequence,
        new: list[int],
        logprobs: list[TokenLogprob] | None,
        now_s: float,
    ) -> int:
        """What a step computed of a running sequence; returns how many tokens were added."""
        sequence = item.sequence
        if NO_NUMBER in new:
            self._fail_weights(sequence)
            return 0
        if item.num_scored and logprobs is not None:
            self._tell_scores(sequence, logprobs[: item.num_scored])
            new, logprobs = new[item.num_scored :], logprobs[item.num_scored :] or None
        kept, may_go_on = _kept(sequence, new)
        logprobs = _of_kept(kept, logprobs)
        if item.drafts:
            num_rejected = self.drafts.observe(item, min(len(new) - 1, len(kept)))
            self.requests.pay_for_drafts(sequence, num_rejected)
        self._note_computed(item)
        if sequence.beams is not None and item.samples:
            self._beams.deliver(sequence, logprobs)
            return 0
        if len(kept) > 1:
            sequence.num_computed += len(kept) - 1  # drafts that were right
        added = 0
        if kept:
            added = self._append(sequence, kept, logprobs, now_s, may_go_on)
        elif item.samples:  # it was to compute its prompt alone
            if sequence.usage.first_token_s is None:
                self._begin_output(sequence, now_s)
            self.requests.finish(sequence, "length")
        if sequence.state is SequenceState.RUNNING:
            self.running.advanced(sequence)
        return added

    def _note_computed(self, item: ScheduledSequence) -> None:
        """Of the sequence's own tokens."""
        sequence = item.sequence
        sequence.num_computed += item.num_tokens
        is_decode = item.num_tokens == 1
        if not is_decode or sequence.usage.first_token_s is None:  # its output when it stops
            self._memory.cache_blocks(sequence)
        if not is_decode or item.drafts or sequence.num_computed % self._block_tokens == 0:
            self.requests.settle(sequence)

    def _tell_scores(self, sequence: Sequence, scored: list[TokenLogprob]) -> None:
        """Of tokens of its prompt."""
        sequence.num_unscored -= len(scored)
        request_id = sequence.request.request_id
        self.requests.events.append(
            TokenEvent(request_id, sequence.index, [], prompt_logprobs=scored)
        )

    def _append(
        self,
        sequence: Sequence,
        token_ids: list[int],
        logprobs: list[TokenLogprob] | None,
        now_s: float,
        may_go_on: bool,
    ) -> int:
        """New tokens of a sequence, the last of which may end it; returns how many."""
        if sequence.usage.first_token_s is None:
            self._begin_output(sequence, now_s)
        tokens, added, guide = sequence.token_ids, len(token_ids), sequence.guide
        tokens += token_ids
        stop = token_ids[-1] if token_ids[-1] in sequence.stop_ids else None
        shown = added if stop is None else added - 1
        if shown < added:
            token_ids = token_ids[:shown]
        end = None if logprobs is None or stop is None else logprobs[shown]
        logprobs = None if logprobs is None else logprobs[:shown]
        if shown:
            request, tier = sequence.request, sequence.service.tier
            is_relegated = tier != request.tenant.tier
            told = tier if is_relegated and sequence.num_output == added else None
            self.requests.events.append(
                TokenEvent(request.request_id, sequence.index, token_ids, logprobs, told)
            )
        error = None if guide is None else guide.error
        if error is not None:
            asked = sequence.request.sampling.grammar
            param = None if asked is None else asked.param
            self.requests.finish(sequence, "error", error=error, fault="request", param=param)
        elif stop is not None:
            self.requests.finish(sequence, "stop", stop_token_id=stop, stop_logprob=end)
        elif not may_go_on:
            self.requests.finish(sequence, "stop")
        elif len(tokens) >= sequence.max_length:
            self.requests.finish(sequence, "length")
        return added

    def _begin_output(self, sequence: Sequence, now_s: float) -> None:
        sequence.usage.first_token_s = now_s
        meter_first_token(sequence, now_s)
        self.requests.prompt_computed(sequence)


def _kept(sequence: Sequence, token_ids: list[int]) -> tuple[list[int], bool]:
    """New tokens of a sequence, up to the one that ends it; its grammar is advanced by them. And
    whether the grammar lets more come."""
    guide, room = sequence.guide, sequence.max_length - len(sequence.token_ids)
    if guide is None and len(token_ids) == 1 <= room:
        return token_ids, True
    token_ids = token_ids[:room]
    for place, token_id in enumerate(token_ids):
        if token_id in sequence.stop_ids:
            return token_ids[: place + 1], guide is None or guide.can_end(token_id)
        if guide is None:
            continue
        kept_id = guide.kept(token_id, room - place)
        may_go_on = guide.advance(kept_id)
        if kept_id != token_id or not may_go_on:
            return [*token_ids[:place], kept_id], may_go_on
    return token_ids, True


def _of_kept(kept: list[int], logprobs: list[TokenLogprob] | None) -> list[TokenLogprob] | None:
    """Of the last of them another may be known, which the grammar has exchanged."""
    if not kept or not logprobs or logprobs[len(kept) - 1].token_id == kept[-1]:
        return logprobs
    told = logprobs[len(kept) - 1]
    logprob = dict(told.top).get(kept[-1], UNTOLD_LOGPROB)
    return [*logprobs[: len(kept) - 1], TokenLogprob(kept[-1], logprob, told.top)]
