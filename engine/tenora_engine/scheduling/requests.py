"""Requests: every request in flight, from `submit` to the one FinishEvent of each sequence. They
move sequences between what waits and what runs, and out of both; they plan no step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from copy import copy
from typing import TYPE_CHECKING

from tenora_engine.client import AbortReason
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import (
    AdapterLoadError,
    DeadlineError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_engine.events import (
    Event,
    Fault,
    FinishReason,
    RefusedEvent,
    Residency,
    TokenLogprob,
)
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.admission import (
    Deadlines,
    Gate,
    check_share,
    make_sequences,
)
from tenora_engine.scheduling.beams import give_text
from tenora_engine.scheduling.bills import Bills, settled
from tenora_engine.scheduling.coming import ComingRequests, settle_whole
from tenora_engine.scheduling.drafts import Drafts
from tenora_engine.scheduling.held import Held
from tenora_engine.scheduling.last_events import events_of_the_end, last_event
from tenora_engine.scheduling.loads import AdapterLoads
from tenora_engine.scheduling.meters import (
    FAULT_OF,
    FINISH_OF,
    Charges,
    Counters,
    Ending,
    is_unanswered,
    meter_end,
    meter_start,
)
from tenora_engine.scheduling.pins import Pins
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.running import Running
from tenora_engine.scheduling.waits import Waits
from tenora_engine.sequence import Flight, Sequence, SequenceState
from tenora_engine.step import EndedCopy
from tenora_engine.telemetry import Telemetry

if TYPE_CHECKING:
    from tenora_engine.grammar.guide import Guide


class Requests:
    """Own all sequences. One that waits is in the queue (or held for its sibling), and its adapter
    is wanted; one that runs is in `running`, and holds pages."""

    def __init__(
        self,
        config: ResolvedConfig,
        memory: MemoryManager,
        queue: WaitingQueue,
        running: Running,
        gate: Gate,
        loads: AdapterLoads,
        pins: Pins,
        charges: Charges,
        drafts: Drafts,
        waits: Waits,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._memory = memory
        self._queue = queue
        self._running = running
        self._gate = gate
        self._loads = loads
        self._pins = pins
        self._charges = charges
        self._drafts = drafts
        self._waits = waits
        self._clock = clock
        self.flights: dict[str, Flight] = {}
        self.bills = Bills(clock)
        self._tenants: Counter[str] = Counter()  # requests in flight
        self.coming = ComingRequests(config, memory, loads, self.bills, telemetry, clock)
        self.bytes = self.coming.bytes
        self._num_sequences = 0
        self.held = Held(queue, waits)
        self.deadlines = Deadlines(memory.costs)
        self.events: list[Event] = []
        self.counters = Counters()
        self.changes = 0  # of what waits and what has been loaded

    @property
    def has_several_tenants(self) -> bool:
        """Whether more than one has a request in flight."""
        return len(self._tenants) > 1

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + self.held.by_tenant.total()

    def waiting_by_tenant(self) -> dict[str, int]:
        return dict(Counter(self._queue.waiting_by_tenant()) + self.held.by_tenant)

    def submit(
        self, request: GenerationRequest, guides: Items[Guide] = (), prepared: bytes | None = None
    ) -> None:
        """See `Engine.submit`. The request has been checked."""
        if prepared is None:
            try:
                prepared = self.coming.prepare(request)
            except QueueFullError:
                self.coming.note_refused(request.tenant)
                raise
        characters = self.coming.add_states(request, guides)
        try:
            self._submit(request, guides, prepared)
        except Exception:
            flight = self.flights.get(request.request_id)
            if flight is None or flight.request is not request:  # else it ends, and gives it back
                self.bytes.release(request, characters)
            raise

    def _submit(self, request: GenerationRequest, guides: Items[Guide], prepared: bytes) -> None:
        self.changes += 1
        key, held = request.tenant.key, self.held.by_tenant
        if self._is_known(request.request_id):
            raise InvalidRequestError(
                f"request {request.request_id} is already in flight; use a new id", "request_id"
            )
        try:
            self._memory.register(request.tenant)
            check_share(self._config, request, self._memory)
            self._gate.check_room(request.tenant, request.sampling.n, held.total(), held[key])
        except QueueFullError:
            self.coming.note_refused(request.tenant)
            raise
        adapter = request.adapter
        residency = self._loads.residency_for(request)
        now_s = self._clock()
        meter, first_number = self.coming.meter(request.tenant), self._num_sequences
        sequences = make_sequences(
            self._config, request, first_number, residency, meter, now_s, guides, prepared
        )
        self._enter(sequences, residency, now_s)
        self._num_sequences += len(sequences)
        holds = self._config.engine.prefix_caching or request.sampling.beams is not None
        first = sequences[:1] if holds else sequences
        bill = self.bills.open(request)
        flight = self.flights[request.request_id] = Flight(request, list(sequences), [], bill)
        self._tenants[key] += 1
        if len(first) < len(sequences):
            self.held.hold(flight, sequences[1:], now_s)
        for sequence in first:
            self._queue.push(sequence, now_s)
            self._begin_wait(sequence, now_s)
            self._watch(sequence)
        if adapter is not None:
            self._loads.used(adapter.digest, key)
            if residency != "device":
                self._loads.request(adapter, request.tenant.key)

    def discard(self, request: GenerationRequest, reason: AbortReason) -> None:
        """See `Engine.discard`. Where another of its id is in flight it would have been refused."""
        self.bytes.release(request)
        if not self._is_known(request.request_id):
            self.events += self.coming.discard(request, reason)
            self._count_end(FINISH_OF[reason])

    def _is_known(self, request_id: str) -> bool:
        return request_id in self.flights or request_id in self.bills

    def sender_of(self, request_id: str) -> str | None:
        """See `Engine.sender_of`."""
        flight = self.flights.get(request_id)
        return self.bills.tenant_of(request_id) if flight is None else flight.request.tenant.key

    def abort(
        self,
        request_id: str,
        index: int | None,
        reason: AbortReason,
        output_tokens: int | None,
    ) -> None:
        """See `Engine.abort`."""
        if index is None and reason != "stop":
            self.events += settle_whole(self.bills, request_id, reason)
        else:
            text_ends = output_tokens if reason == "stop" else None
            self.events += settled(self.bills.confirm(request_id, index, text_ends))
        flight = self.flights.get(request_id)
        if flight is None:
            return
        for sequence in reversed(flight.sequences.copy()):
            if index in (None, sequence.index) and sequence.state is not SequenceState.FINISHED:
                self.finish(
                    sequence,
                    FINISH_OF[reason],
                    output_tokens=output_tokens,
                    fault=FAULT_OF[reason],
                    is_told=True,
                )

    def forget_adapter(self, namespace: str, digest: str, *, device_only: bool = False) -> None:
        """See `Engine.forget_adapter`."""
        self._memory.purge(namespace, digest)
        if not device_only:
            self._drafts.forget(namespace, digest)
            self._pins.forget(digest)
        self._loads.forget(digest, device_only=device_only)

    def forget_namespace(self, namespace: str) -> None:
        """See `Engine.forget_namespace`."""
        self._memory.purge_namespace(namespace)
        self._drafts.answers.forget_namespace(namespace)

    def started(self, sequence: Sequence, is_express: bool = False) -> None:
        """A waiting sequence has been given its pages and runs from now on."""
        request = sequence.request
        now_s = self._clock()
        self.changes += 1
        self._queue.start(sequence, is_express)
        self._running.start(sequence)
        sequence.state = SequenceState.RUNNING
        sequence.own_tokens()
        sequence.service.slot_step = 0
        if sequence.usage.admitted_s is not None:
            sequence.service.stays_until = len(sequence.token_ids) + self._charges.makes_up_by(
                sequence
            )
        sequence.service.settled_length = len(sequence.token_ids)
        sequence.service.settled_kv = self._charges.kv_price
        self._memory.stop_waiting(sequence)
        if request.adapter is not None:
            self._loads.discard(request.adapter.digest)
            self._charge_load(sequence)
        if sequence.usage.admitted_s is None:  # else it was preempted: all this is metered once
            self._meter_start(sequence, now_s)
        self._waits.end(sequence, now_s)
        sequence.prefix.unpaid_pages = 0

    def settle(self, sequence: Sequence) -> None:
        """Charge a running sequence's tenant for what it decoded and held since the last time:
        whenever it has filled a block, and when it stops."""
        self.charge(sequence, self._charges.settle(sequence))

    def pay_for_drafts(self, sequence: Sequence, num_rejected: int) -> None:
        """Rows of a step that came to nothing are of its tenant's share; they are not billed."""
        if num_rejected:
            self.charge(sequence, sequence.service.token_cost * num_rejected)

    def preempt(self, sequence: Sequence) -> None:
        """Back to the head of its tenant's line; its full blocks stay cached, so that computing
        it again costs little as long as they are."""
        self.suspend(sequence)
        self.expect_work(sequence)
        now_s = self._clock()
        self._queue.push_front(sequence, now_s)
        self._begin_wait(sequence, now_s, again=True)
        self.changes += 1
        sequence.usage.preemptions += 1
        sequence.usage.meter.preemptions += 1

    def suspend(self, sequence: Sequence) -> None:
        """A running sequence gives back its pages; it is the caller's to have it wait."""
        self._stop(sequence)
        sequence.state = SequenceState.WAITING
        self._memory.wait(sequence)

    def expect_work(self, sequence: Sequence) -> None:
        """Of one that waits to run again: what is not cached of it."""
        again = len(sequence.token_ids) - self._memory.cached_tokens(sequence)
        sequence.service.work = again * sequence.service.token_cost

    def give_up_place(self, sequence: Sequence) -> None:
        """A running sequence lets one of another tenant run in its place."""
        self.preempt(sequence)
        self.counters.places_given_up += 1

    def give_up_late(self, now_s: float) -> None:
        """What waits and cannot be in time any more is relegated or refused, as its plan says. A
        request of which something has run or ended is not refused."""
        for sequence in self.deadlines.take_missed(now_s):
            if sequence.state is not SequenceState.WAITING:
                continue  # refused beside its sibling
            if sequence.request.tenant.late == "relegate":
                self._relegate(sequence)
            elif self.flights[sequence.request.request_id].is_whole:
                self._refuse(sequence)

    def settle_late(self) -> None:
        """Bill as it ended what has waited too long to be told where its text ended."""
        for usage in self.bills.settle_late():
            self.events += settled(usage)

    def _relegate(self, sequence: Sequence) -> None:
        """A waiting sequence that has missed its deadline goes to the lowest class."""
        self.changes += 1
        self._queue.remove(sequence)
        self._gate.relegate(sequence)
        self._queue.push(sequence, self._clock())
        sequence.usage.meter.relegations += 1

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        output_tokens: int | None = None,
        error: str | None = None,
        stop_token_id: int | None = None,
        fault: Fault = "engine",
        param: str | None = None,
        is_told: bool = False,
        stop_logprob: TokenLogprob | None = None,
    ) -> None:
        """End a sequence, wherever it is, give back what it holds and make its last event. A beam
        search ends as a whole, and so does a request in error or cut off: it has no answer."""
        flight = self.flights[sequence.request.request_id]
        ending = Ending(
            reason, output_tokens, error, stop_token_id, fault, param, is_told, stop_logprob
        )
        is_whole = sequence.beams is not None or is_unanswered(ending)
        ends = flight.sequences.copy() if is_whole else [sequence]
        for each in reversed(ends):
            self._end(flight, each, ending)

    def _end(self, flight: Flight, sequence: Sequence, ending: Ending) -> None:
        now_s, to_unix_s = self._clock(), self._memory.unix_offset()
        self._take_out(flight, sequence, now_s)
        sequence.waits.parts = self._waits.parts(sequence)
        if sequence.beams is not None and ending.reason in ("stop", "length"):
            ending = give_text(sequence, ending, self.events)
        meter_end(sequence, ending, now_s)
        self.events.append(last_event(self.bills, flight, sequence, ending, now_s, to_unix_s))
        self._leave(flight, sequence)
        self._drafts.ended(sequence)
        if not flight.sequences:
            self._count_end(ending.reason)

    def _count_end(self, reason: FinishReason) -> None:
        self.counters.requests_finished += 1
        self.counters.requests_aborted += reason == "abort"

    def abandon(self, reason: FinishReason, error: str | None) -> list[Event]:
        """The last events, with their meters, of all that is in flight when the engine ends. The
        memory may be beyond repair by now and is not touched: nothing can be done after this."""
        ending = Ending(reason, error=error, fault="platform")
        times = self._clock(), self._memory.unix_offset()
        flights = self.flights.values()
        events = events_of_the_end(flights, self.events, self.bills, self._waits, ending, *times)
        self.flights.clear()
        self.events.clear()
        return events

    def _refuse(self, sequence: Sequence) -> None:
        """End all sequences of a waiting request, of which none has run."""
        flight, request = self.flights[sequence.request.request_id], sequence.request
        meter = sequence.usage.meter
        for each in reversed(flight.sequences.copy()):
            self._take_out(flight, each, self._clock())
            meter.no_first_token()
            self._leave(flight, each)
        meter.refuse("deadline")
        message = (
            f"the first token cannot come within {request.tenant.ttft_ms:.0f} ms any more; this "
            "plan promises that and refuses what would be late"
        )
        retry_after_ms = self._gate.retry_after_ms(sequence, self._loads.residency_for(request))
        self.events.append(RefusedEvent(request.request_id, message, retry_after_ms))
        self.events += settled(self.bills.refuse(request, flight.bill))

    def _leave(self, flight: Flight, sequence: Sequence) -> None:
        """Give back what keeps a sequence in flight that neither runs nor waits any more."""
        self.changes += 1
        sequence.state = SequenceState.FINISHED
        self._memory.leave(sequence)
        flight.sequences.remove(sequence)
        if sequence.index == 0 and flight.held:
            self._release_held(flight)
        if not flight.sequences:
            del self.flights[sequence.request.request_id]
            self.bytes.release(sequence.request, sequence.characters)
            key = sequence.request.tenant.key
            self._tenants[key] -= 1
            if not self._tenants[key]:
                del self._tenants[key]
        if sequence.request.adapter is not None:
            self._loads.release(sequence.request.adapter.digest)

    def prompt_computed(self, sequence: Sequence) -> None:
        """A sequence has its first token: if it is the first of several, its siblings may queue."""
        if sequence.index == 0 and self.held.by_tenant:
            flight = self.flights.get(sequence.request.request_id)
            if flight is not None:
                self._release_held(flight)

    def take_loads(self) -> None:
        """Take in finished loads; what failed ends the sequences that wait for it, only those."""
        for digest, error in self._loads.poll():
            if error is not None:
                self._fail_waiting(digest, error)

    def take_copies(self, copies: Collection[EndedCopy]) -> None:
        """Take in what has come to the device; an adapter that could not ends the sequences that
        wait for it."""
        for digest, has_come in self._memory.take_copies(copies) if copies else ():
            self.changes += 1
            self._waits.load_changed(digest, is_coming=False)
            if has_come:
                self._loads.discard(digest)
            else:
                error = AdapterLoadError(f"{digest} could not be copied to the device")
                self._fail_waiting(digest, error)
        self._pins.settle()

    def _enter(self, sequences: list[Sequence], residency: Residency | None, now_s: float) -> None:
        """Appraise the sequences of a new request; raises what the gate raises, and nothing has
        changed but that a refused one's adapter is on its way to the host, for the next try."""
        request = sequences[0].request
        for sequence in sequences:
            self._memory.enter(sequence, sequences[1] if sequence.index > 1 else None)
        try:
            for sequence in sequences[:2]:  # the first's prompt may be scored; the others are alike
                self._gate.appraise(sequence, residency, now_s)
        except DeadlineError:
            sequences[0].usage.meter.refuse("deadline")
            for sequence in sequences:
                self._memory.stop_waiting(sequence)
                self._memory.leave(sequence)
            if request.adapter is not None and residency != "device":
                self._loads.request(request.adapter, request.tenant.key)
            raise
        for sequence in sequences[2:]:
            sequence.service = copy(sequences[1].service)

    def charge(self, sequence: Sequence, cost: float) -> None:
        """A sequence's tenant."""
        sequence.usage.meter.service += cost
        self._queue.charge(sequence, cost)

    def _charge_load(self, sequence: Sequence) -> None:
        """The first to start on an adapter that has come pays for it."""
        resident = self._memory.resident(sequence.request)
        if resident is not None and resident.unpaid_bytes:
            tier = self._loads.cold_tier(resident.digest)
            self.charge(sequence, self._charges.load(resident.unpaid_bytes, tier))
            resident.unpaid_bytes = 0

    def _begin_wait(self, sequence: Sequence, now_s: float, again: bool = False) -> None:
        adapter = sequence.request.adapter
        is_loading = adapter is not None and self._loads.is_coming(adapter.digest)
        self._waits.begin(sequence, now_s, again=again, is_loading=is_loading)

    def _watch(self, sequence: Sequence) -> None:
        if self._gate.keeps_promises:
            self.deadlines.watch(sequence)

    def _take_out(self, flight: Flight, sequence: Sequence, now_s: float) -> None:
        if sequence.state is SequenceState.RUNNING:
            self._stop(sequence)
            return
        if sequence in flight.held:
            self.held.take_out(flight, sequence)
        else:
            self._queue.remove(sequence)
        self._waits.end(sequence, now_s)
        self._memory.stop_waiting(sequence)

    def _stop(self, sequence: Sequence) -> None:
        self.settle(sequence)
        self._running.stop(sequence)
        self._memory.release(sequence)

    def _meter_start(self, sequence: Sequence, now_s: float) -> None:
        request = sequence.request
        sequence.usage.admitted_s = now_s
        self.flights[request.request_id].ran = True
        fetched = self._charges.fetch(sequence.prefix.unpaid_pages)
        self.charge(sequence, sequence.service.token_cost * sequence.num_uncomputed + fetched)
        if request.adapter is not None and sequence.usage.residency != "device":
            resident = self._memory.resident(request)
            sequence.usage.adapter_load_ms = 0.0 if resident is None else resident.load_ms
            was_cold = sequence.usage.residency != "host"
            sequence.usage.cold_load = was_cold and self._loads.take_cold(request.adapter.digest)
        if sequence.index == 0:
            sequence.usage.cached_tokens = sequence.num_computed
        meter_start(sequence, now_s)

    def _release_held(self, flight: Flight) -> None:
        """The prompt's blocks are cached, or sequence 0 has ended: its siblings queue."""
        self.changes += 1
        if flight.held:
            for sequence in self.held.release(flight, self._clock()):
                self._watch(sequence)

    def _fail_waiting(self, digest: str, error: AdapterLoadError) -> None:
        self._pins.failed(digest, error)
        for flight in list(self.flights.values()):
            adapter = flight.request.adapter
            if adapter is None or adapter.digest != digest:
                continue
            for sequence in reversed(flight.sequences.copy()):
                if sequence.state is SequenceState.WAITING:
                    self.finish(sequence, "error", error=str(error), fault=error.fault)
