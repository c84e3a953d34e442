"""One running or waiting sequence: its tokens, its pages, its adapter slot.

The scheduler owns and changes it; the runner only reads it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tenora_engine.events import Residency
from tenora_engine.request import GenerationRequest
from tenora_kernels.segments import BASE_SLOT


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """`token_ids` is prompt plus output. KV of the first `num_computed` of them lies in the pages
    of `block_table`. After preemption `num_computed` is 0 and the output is part of what is
    prefilled again."""

    request: GenerationRequest
    index: int
    token_ids: list[int]
    num_prompt: int
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)  # arena page numbers
    adapter_slot: int = BASE_SLOT
    state: SequenceState = SequenceState.WAITING
    cached_tokens: int = 0  # of the prompt, found in the prefix cache at first admission
    residency: Residency | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    adapter_load_ms: float = 0.0

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed
