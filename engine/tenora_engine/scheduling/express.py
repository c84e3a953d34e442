"""ExpressLane: steps of nothing but the prefills of tenants that ask for no more than their shares,
where others do, or make a step long. They come before a step of everybody's, or while one is
preempted."""

from __future__ import annotations

from collections.abc import Collection

from tenora_engine.config import ResolvedConfig
from tenora_engine.scheduling.chunks import ChunkSizer, PrefillRoom, PrefillTimes, StepDraft
from tenora_engine.scheduling.intake import Intake
from tenora_engine.scheduling.places import Places
from tenora_engine.scheduling.plan import ScheduledSequence, ScheduledStep
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.running import Running, holder_of
from tenora_engine.sequence import Sequence

MAX_STEPS = 8
"""Express steps from the beginning of a step of everybody's to that of the next, so that it comes
to its end however many ask."""


class ExpressLane:
    """Plans express steps. It ends no sequence that runs and takes no page from one, so that a step
    which is preempted can go on."""

    def __init__(
        self,
        config: ResolvedConfig,
        queue: WaitingQueue,
        running: Running,
        intake: Intake,
        places: Places,
        chunks: ChunkSizer,
    ) -> None:
        self._max_step_tokens = config.engine.max_step_tokens
        self._max_chunk = config.engine.max_prefill_chunk
        self._queue = queue
        self._running = running
        self._intake = intake
        self._places = places
        self._chunks = chunks
        self.num_planned = 0
        self._steps = 0  # since a step of everybody's began

    def plan(self, preempted: ScheduledStep | None, now_s: float) -> list[ScheduledSequence]:
        """The next express step; empty where a step of everybody's is to begin or to go on."""
        chunks: list[ScheduledSequence] = []
        if self._steps < MAX_STEPS and self._is_open(now_s):
            chunks = self._chunks_now(preempted, now_s)
        if chunks:
            self._steps += 1
            self.num_planned += 1
        elif preempted is None:
            self._steps = 0
        return sorted(chunks, key=lambda item: item.sequence.adapter_slot)

    def may_pass(self, chunks: Collection[ScheduledSequence], now_s: float) -> bool:
        """Whether a step with these prefills may be preempted: not where they are of tenants that
        would have come here. A long prompt's is, though nobody else has been there yet."""
        is_open = self._is_open(now_s) or self._places.are_crowded or self._has_long(now_s)
        return is_open and not any(self._is_express(c.sequence, now_s) for c in chunks)

    def _begun(self, preempted: ScheduledStep | None, now_s: float) -> list[Sequence]:
        """In fair order, those whose prompts are computed in part. One that has had its first token
        may lack pages for the next ones."""
        at_work = () if preempted is None else {item.sequence for item in preempted}
        begun = [
            sequence
            for sequence in self._running.prefilling()
            if sequence.usage.first_token_s is None
            and sequence not in at_work
            and self._is_express(sequence, now_s)
        ]
        return sorted(begun, key=self._queue.turn)

    def _is_express(self, sequence: Sequence, now_s: float) -> bool:
        if self._places.is_crowding(holder_of(sequence)) or self._chunks.is_long(sequence, now_s):
            return False
        return self._queue.keeps_share(sequence.request.tenant, sequence.service.class_name)

    def _is_open(self, now_s: float) -> bool:
        """Whether some tenant asks for more than its share, or holds more places than it would if
        others came, or makes steps long, and it is not alone."""
        num_tenants = self._chunks.promises.num_tenants(now_s)
        self._places.observe_tenants(num_tenants)
        if num_tenants < 2:
            return False
        is_unfair = self._queue.has_excess or self._places.are_crowded
        return is_unfair or self._has_long(now_s)

    def _has_long(self, now_s: float) -> bool:
        """Whether steps of everybody's are long: by a prompt that is, however few its tenant has,
        or by what decodes."""
        if self._chunks.is_slow(self._running.num_decoding, now_s):
            return True
        return any(self._chunks.is_long(s, now_s) for s in self._running.prefilling())

    def _chunks_now(self, preempted: ScheduledStep | None, now_s: float) -> list[ScheduledSequence]:
        chunks, num_decoding = self._chunks, self._running.num_decoding
        most = self._max_step_tokens - num_decoding
        seconds = chunks.express_s(self._running.most_urgent(now_s), num_decoding, now_s, most)
        if not seconds:
            return []
        tenant_s = chunks.tenant_s(self._max_chunk)
        times = PrefillTimes(seconds, tenant_s, arrival_s=0.0)
        room = PrefillRoom(most, times, chunks, self._queue, now_s)
        draft = StepDraft(room, self._queue)
        for sequence in self._begun(preempted, now_s):
            draft.add(sequence)
        self._intake.admit_express(draft)
        return draft.chunks
