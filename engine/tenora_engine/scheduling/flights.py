"""A request in flight: its sequences until the last of them has ended, and the event that ends
one."""

from __future__ import annotations

from dataclasses import dataclass

from tenora_engine.events import FinishEvent, FinishReason
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.meters import usage_record
from tenora_engine.sequence import Sequence


@dataclass
class Flight:
    """`sequences` have not ended; of these `held` wait until the blocks of their common prompt,
    which sequence 0 computes, are in the prefix tree. When several end together sequence 0 goes
    last, so that it knows whether the prompt was ever computed."""

    request: GenerationRequest
    sequences: list[Sequence]
    held: list[Sequence]
    ran: bool = False  # whether any of them was ever admitted

    @property
    def is_whole(self) -> bool:
        """Whether none of its sequences has run or ended."""
        return not self.ran and len(self.sequences) == self.request.sampling.n


def finish_event(
    flight: Flight,
    sequence: Sequence,
    reason: FinishReason,
    now_s: float,
    *,
    output_tokens: int | None = None,
    error: str | None = None,
    stop_token_id: int | None = None,
) -> FinishEvent:
    """The last event of a sequence of `flight`, metered at `output_tokens` if given (never more
    than were generated). The prompt is metered on sequence 0, unless the request ends without
    having run at all."""
    generated = sequence.num_output
    metered = generated if output_tokens is None else max(min(output_tokens, generated), 0)
    ran = flight.ran or len(flight.sequences) > 1
    usage = usage_record(
        sequence,
        reason,
        prompt_ran=sequence.index == 0 and ran,
        output_tokens=metered,
        now_s=now_s,
    )
    return FinishEvent(
        request_id=sequence.request.request_id,
        index=sequence.index,
        reason=reason,
        usage=usage,
        error=error,
        stop_token_id=stop_token_id,
    )
