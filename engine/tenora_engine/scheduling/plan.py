"""What one step will do (`StepPlan`) and what came of it (`StepResult`): the values that pass
between schedule, build_batch, run and commit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec

from tenora_engine.events import TokenLogprob
from tenora_engine.sequence import Sequence


class ScheduledSequence(msgspec.Struct, frozen=True, gc=False):
    """`num_tokens` tokens of `sequence`, from its `num_computed` on, run in this step; their pages
    are allocated. `samples` is whether the last of them yields a new token."""

    sequence: Sequence
    num_tokens: int
    samples: bool


@dataclass(frozen=True)
class StepPlan:
    """The sequences of one step, those of one adapter slot next to each other, by rising slot (the
    base first). Decode comes first in what the token budget is spent on, not in the order of rows.
    Empty when there is nothing to run. `is_pausable`: others may run before it has ended."""

    scheduled: tuple[ScheduledSequence, ...]
    is_pausable: bool = False

    @cached_property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)

    @cached_property
    def is_decode(self) -> bool:
        """Whether every sequence runs one token and samples the next."""
        rows = self.scheduled
        return self.num_tokens == len(rows) and all(item.samples for item in rows)


@dataclass(frozen=True)
class StepResult:
    """New tokens by position in `StepPlan.scheduled`; an empty list where nothing was sampled.
    Several tokens a sequence are allowed (speculative decoding)."""

    token_ids: list[list[int]]
    logprobs: list[list[TokenLogprob] | None]
