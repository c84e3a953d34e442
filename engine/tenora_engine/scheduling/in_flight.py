"""Steps that have been planned and not committed, and what becomes of them where one of their
sequences cannot be planned or executed: that sequence ends, the others go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items

from tenora_engine.scheduling.plan import PlanWriter, ScheduledSequence, ScheduledStep
from tenora_engine.scheduling.requests import Requests
from tenora_engine.sequence import SequenceState
from tenora_engine.step import MemoryOperation, StepPlan


class StepsInFlight:
    """By the number of their plan."""

    def __init__(self, plans: PlanWriter, requests: Requests) -> None:
        self.plans = plans
        self._requests = requests
        self._steps: dict[int, ScheduledStep] = {}

    @property
    def first(self) -> ScheduledStep | None:
        """The one that was preempted, while another is planned."""
        return next(iter(self._steps.values()), None)

    def has(self, request_id: str) -> bool:
        """Whether any of them computes a sequence of the request. O(rows)."""
        return any(
            item.sequence.request.request_id == request_id
            for step in self._steps.values()
            for item in step
        )

    def step(self, plan: StepPlan) -> ScheduledStep:
        """Raises KeyError when it is not in flight."""
        return self._steps[plan.number]

    def take(self, plan: StepPlan) -> ScheduledStep:
        """It is not in flight any more. Raises KeyError when it is not."""
        return self._steps.pop(plan.number)

    def begin(
        self, step: ScheduledStep, is_preemptible: bool, memory: Iterable[MemoryOperation]
    ) -> StepPlan:
        """Its plan. A sequence whose row cannot be written ends in "error"."""
        memory = list(memory)
        try:
            plan = self.plans.write(step, is_preemptible, memory)
        except Exception as error:
            step = self._without_unwritable(step, error)
            plan = self.plans.write(step, is_preemptible, memory)
        if step.items:
            self._steps[plan.number] = step
        return plan

    def part(self, plan: StepPlan, rows: Items[int]) -> StepPlan:
        """Some rows of a plan, by rising number, as a plan of their own. Its operations on memory
        have been done; drafts, which show in no answer, are left out. To be executed before any
        other and then taken."""
        items = self._steps[plan.number].items
        step = ScheduledStep([items[row].without_drafts() for row in rows])
        part = self.plans.write(step)
        self._steps[part.number] = step
        return part

    def probe(self, plan: StepPlan) -> StepPlan:
        """A step that nothing of any request is in: one token of the base model, in a page of a
        plan none of whose rows could be run. To be executed before any other and then taken."""
        probe = self.plans.probe(self._steps[plan.number].items[0])
        self._steps[probe.number] = ScheduledStep()
        return probe

    def owners(self, plan: StepPlan) -> list[tuple[str, str]]:
        """Of each row of a plan the tenant's key and the request's id."""
        requests = [item.sequence.request for item in self._steps[plan.number].items]
        return [(request.tenant.key, request.request_id) for request in requests]

    def fail(self, plan: StepPlan, errors: Mapping[int, str]) -> None:
        """These rows could not be executed: their sequences end in "error"; what earlier steps
        computed stays. The others have been, in parts; where there are none the step is over."""
        items = self._steps.pop(plan.number).items
        for row, message in errors.items():
            self._end(items[row], message)
        left = [item.without_drafts() for row, item in enumerate(items) if row not in errors]
        if left:
            self._steps[plan.number] = ScheduledStep(left)

    def _without_unwritable(self, step: ScheduledStep, error: Exception) -> ScheduledStep:
        """Raises the error where no row by itself is what it came of."""
        left: list[ScheduledSequence] = []
        for item in step:
            try:
                self.plans.write(ScheduledStep([item]))
            except Exception as own:
                self._end(item, f"the step failed: {type(own).__name__}: {own}")
            else:
                left.append(item)
        if len(left) == len(step):
            raise error
        # Who is in error takes its siblings along.
        return ScheduledStep([i for i in left if i.sequence.state is SequenceState.RUNNING])

    def _end(self, item: ScheduledSequence, message: str) -> None:
        if item.sequence.state is SequenceState.RUNNING:
            self._requests.finish(item.sequence, "error", error=message)
