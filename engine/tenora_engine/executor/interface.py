"""Executor: who executes the plans of steps. It owns tensors and knows neither requests nor
sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.step import EndedCopy, StepPlan, StepResult


class Executor(Protocol):
    """What the engine needs of one, as in `executor.ModelExecutor`. `on_copy_ended` may be called
    from any thread, once `take_ended_copies` has it."""

    on_copy_ended: Callable[[], None] | None

    @property
    def can_preempt(self) -> bool:
        """Whether it stops a step for another before it has ended."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether a token has the same bits however it is computed: alone or among others, decoded,
        of a prompt or as a draft."""
        ...

    def stage(self, adapters: Iterable[PackedAdapter]) -> None:
        """What the next plan's operations call by its digest; kept until that has been executed."""
        ...

    def execute(self, plan: StepPlan) -> StepResult | None:
        """What came of the plan. None: it was preempted, and goes on when the same plan is executed
        again. Raises MemoryOperationError when its operations on memory were not all done, which
        nothing repairs; any other error ends the plan, and only its sequences fail."""
        ...

    def take_ended_copies(self) -> list[EndedCopy]:
        """Those beside the steps that have ended since the last time."""
        ...

    def preempt(self, wanted: bool) -> None:
        """Stop the step that is executed or executed next, if its plan may be, as soon as possible;
        from any thread. Holds until it is asked otherwise."""
        ...

    def close(self) -> None:
        """Copies under way are finished, others dropped. Nothing is executed after this."""
        ...
