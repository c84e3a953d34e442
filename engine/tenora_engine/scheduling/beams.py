"""Beams: beam searches among what is scheduled. Each beam is a sequence like others; when all of a
search have the candidates for their next tokens these are chosen, and who goes on with the text of
another takes over its KV. One whose siblings are not as far waits for them without pages, so that
any memory in which one of them fits is enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tenora_engine.config import ResolvedConfig
from tenora_engine.events import Event, TokenEvent, TokenLogprob
from tenora_engine.memory.forks import fork
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.scheduling.meters import DECODE_COST, Ending, meter_first_token
from tenora_engine.scheduling.running import Running
from tenora_engine.sequence import Flight, Sequence, SequenceState

if TYPE_CHECKING:
    from tenora_engine.scheduling.requests import Requests


class Beams:
    """Of all searches. `delivered` names the requests of which a step has brought candidates."""

    def __init__(
        self,
        config: ResolvedConfig,
        memory: MemoryManager,
        requests: Requests,
        running: Running,
        clock: Callable[[], float],
    ) -> None:
        self._block_tokens = config.engine.block_tokens
        self._memory = memory
        self._requests = requests
        self._running = running
        self._clock = clock
        self.delivered: dict[str, list[Sequence]] = {}

    def deliver(self, sequence: Sequence, logprobs: list[TokenLogprob] | None) -> None:
        """The candidates for a beam's next token, all tokens of which have been computed; `advance`
        is to be called when a step's results have been taken in."""
        assert sequence.beams is not None
        assert logprobs is not None
        sequence.beams.found[sequence.index] = logprobs[-1].top
        self.delivered.setdefault(sequence.request.request_id, []).append(sequence)

    def advance(self) -> int:
        """Each search of which all beams have their candidates goes on by a token, or ends; in the
        others, those that have theirs wait. One that another of its beams has ended in the same
        step is over. Returns how many tokens were generated."""
        delivered, self.delivered = self.delivered, {}
        added = 0
        for request_id, sequences in delivered.items():
            if sequences[0].state is SequenceState.FINISHED:
                continue
            flight = self._requests.flights[request_id]
            group = sequences[0].beams
            assert group is not None
            if group.is_complete:
                self._select(flight)
                added += group.width
            else:
                for sequence in sequences:
                    self._hold(flight, sequence)
        return added

    def _select(self, flight: Flight) -> None:
        members = flight.sequences
        first, group = members[0], members[0].beams
        assert group is not None
        if not group.num_steps:
            self._begin(members)
        parents = group.select()
        # Each beam has generated one more, also where it is not gone on with.
        self._requests.charge(first, group.width * DECODE_COST * first.service.token_cost)
        first.usage.meter.output_tokens += group.width
        if group.is_over:
            self._requests.finish(first, "stop")
            return
        for place, parent in enumerate(parents):
            if parent != place:
                self._take_over(flight, members[parent], members[place])
        for sequence, beam in zip(members, group.beams, strict=True):
            sequence.token_ids.append(beam.token_id)
            sequence.service.settled_length = len(sequence.token_ids)
            if sequence.state is SequenceState.RUNNING:
                self._running.advanced(sequence)
        if flight.held:
            self._release(flight)

    def _begin(self, members: list[Sequence]) -> None:
        """The prompt is computed, and with it the candidates of all."""
        now_s, first = self._clock(), members[0]
        for sequence in members:
            sequence.usage.first_token_s = now_s
            meter_first_token(sequence, now_s)
            sequence.service.tier = first.service.tier
            sequence.service.class_name = first.service.class_name

    def _take_over(self, flight: Flight, parent: Sequence, child: Sequence) -> None:
        """The child goes on with the parent's text."""
        if parent.state is child.state is SequenceState.RUNNING:
            fork(self._memory, parent, child, self._block_tokens, self._clock())
        elif child.state is SequenceState.RUNNING:
            self._hold(flight, child)
        child.token_ids = parent.token_ids.copy()

    def _hold(self, flight: Flight, sequence: Sequence) -> None:
        self._requests.changes += 1
        self._requests.suspend(sequence)
        self._requests.held.hold(flight, [sequence], self._clock())

    def _release(self, flight: Flight) -> None:
        """Those that wait without pages have tokens to compute."""
        self._requests.changes += 1
        for sequence in flight.held:
            self._memory.stop_waiting(sequence)
            sequence.prefix.encoded = b""
            self._memory.wait(sequence)
            self._requests.expect_work(sequence)
        for _ in self._requests.held.release(flight, self._clock()):
            pass


def give_text(sequence: Sequence, ending: Ending, events: list[Event]) -> Ending:
    """The sequence, which has ended and holds nothing any more, gets the text of its rank among
    those that its search has found; `events` are told. Returns how that text ends."""
    group, request = sequence.beams, sequence.request
    assert group is not None
    best = group.best()
    if sequence.index >= len(best):  # the search has not begun
        return ending
    _, beam, reason, stop = best[sequence.index]
    path = beam.path()
    sequence.token_ids = [*request.prompt_token_ids, *(each.token_id for each in path)]
    shown = path if stop is None else path[:-1]
    if shown:
        found = [each.found for each in shown if each.found is not None]
        tier = sequence.service.tier
        events.append(
            TokenEvent(
                request.request_id,
                sequence.index,
                [each.token_id for each in shown],
                found or None,
                tier if tier != request.tenant.tier else None,
            )
        )
    end = None if stop is None else path[-1].found
    return ending._replace(reason=reason, stop_token_id=stop, stop_logprob=end)
