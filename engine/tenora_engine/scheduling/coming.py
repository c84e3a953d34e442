"""ComingRequests: those that have not been submitted. Their memory counts, their texts are checked,
and they end when they are aborted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenora_engine.client import AbortReason
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import QueueFullError
from tenora_engine.events import Event, SettledEvent
from tenora_engine.grammar.guide import Guide
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.memory.salts import salted_tokens
from tenora_engine.request import GenerationRequest, Tenant
from tenora_engine.scheduling.admission import check_texts, make_sequences
from tenora_engine.scheduling.bills import Bills, settled
from tenora_engine.scheduling.class_queue import service_class
from tenora_engine.scheduling.last_events import last_event
from tenora_engine.scheduling.loads import AdapterLoads
from tenora_engine.scheduling.meters import FAULT_OF, FINISH_OF, Ending, meter_end
from tenora_engine.scheduling.request_bytes import RequestBytes
from tenora_engine.sequence import Flight
from tenora_engine.telemetry import ServiceMeter, Telemetry


class ComingRequests:
    """`prepare` and `release` may come from any thread, the rest from that of the steps."""

    def __init__(
        self,
        config: ResolvedConfig,
        memory: MemoryManager,
        loads: AdapterLoads,
        bills: Bills,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._memory = memory
        self._loads = loads
        self._bills = bills
        self._telemetry = telemetry
        self._clock = clock
        self.bytes = RequestBytes(config.engine.max_request_bytes)

    def prepare(self, request: GenerationRequest) -> bytes:
        """See `Engine.prepare`; the rest of the request has been checked."""
        self.bytes.reserve(request)
        try:
            check_texts(self._config, request)
            if not self._config.engine.prefix_caching:
                return b""
            return salted_tokens(request.prompt_token_ids, request.cache_salt)
        except Exception:
            self.bytes.release(request)
            raise

    def add_states(self, request: GenerationRequest, guides: Sequence[Guide]) -> int:
        """Count the states of the request's grammar, and return how many characters that counts.
        Raises QueueFullError, and the request counts no more."""
        characters = guides[0].characters if guides else 0
        try:
            self.bytes.add_states(request, characters)
        except QueueFullError:
            self.note_refused(request.tenant)
            self.bytes.release(request)
            raise
        return characters

    def meter(self, tenant: Tenant) -> ServiceMeter:
        """The tenant's in the class that it asks for."""
        return self._telemetry.meter(service_class(tenant.tier), tenant.key)

    def note_refused(self, tenant: Tenant) -> None:
        """A request has been refused for want of room."""
        self.meter(tenant).refuse("queue_full")

    def discard(self, request: GenerationRequest, reason: AbortReason) -> list[Event]:
        """Return the last events of one that has been prepared. O(its sequences)."""
        now_s, to_unix_s = self._clock(), self._memory.unix_offset()
        meter, residency = self.meter(request.tenant), self._loads.residency_for(request)
        sequences = make_sequences(self._config, request, 0, residency, meter, now_s)
        flight = Flight(request, sequences, [], self._bills.open(request))
        events: list[Event] = [*settle_whole(self._bills, request.request_id, reason)]
        ending = Ending(FINISH_OF[reason], fault=FAULT_OF[reason], is_told=True)
        for sequence in reversed(sequences.copy()):
            meter_end(sequence, ending, now_s)
            events.append(last_event(self._bills, flight, sequence, ending, now_s, to_unix_s))
            sequences.remove(sequence)
        return events


def settle_whole(bills: Bills, request_id: str, reason: AbortReason) -> list[SettledEvent]:
    """Return what is billed now that a whole request is aborted."""
    return settled(bills.abort(request_id, is_free=reason in ("invalid", "cut_off")))
