"""Executor: who executes the plans of steps. It owns tensors and knows neither requests nor
sequences."""

from __future__ import annotations

from typing import Protocol

from tenora_engine.step import StepPlan, StepResult


class Executor(Protocol):
    """What the engine needs of one, as in `executor.ModelExecutor`."""

    @property
    def can_preempt(self) -> bool:
        """Whether it stops a step for another before it has ended."""
        ...

    def execute(self, plan: StepPlan) -> StepResult | None:
        """What came of the plan. None: it was preempted, and goes on when the same plan is executed
        again. May raise: then the plan has ended, and only its sequences fail."""
        ...

    def preempt(self, wanted: bool) -> None:
        """Stop the step that is executed or executed next, if its plan may be, as soon as possible;
        from any thread. Holds until it is asked otherwise."""
        ...
