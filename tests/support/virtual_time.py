"""An engine on fakes in virtual time: steps take what a machine with given costs would, and are
preempted between layers by who comes meanwhile. Nothing depends on how busy this machine is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_fakes import ExecutedPlan, Rig
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.plan import ScheduledStep
from tenora_engine.step import StepPlan, StepResult

LAYERS = 30
"""A step is preempted at the next of them."""


@dataclass(frozen=True)
class Machine:
    """Seconds: of a step, of a row that decodes and a position that it reads, of a prefilled token
    and a position that it attends to."""

    step_s: float = 0.010
    row_s: float = 0.0005
    position_s: float = 4e-6
    token_s: float = 0.001
    pair_s: float = 8e-6  # as the fakes' model has it: as dear as the rest at 125 positions

    def seconds(self, step: ScheduledStep) -> float:
        total_s = self.step_s
        for item in step:
            for position in range(item.sequence.num_computed, len(item.sequence.token_ids))[
                : item.num_tokens
            ]:
                if item.num_tokens == 1:
                    total_s += self.row_s + self.position_s * (position + 1)
                else:
                    total_s += self.token_s + self.pair_s * (position + 1)
        return total_s


@dataclass
class Answer:
    came_s: float
    token_times_s: list[float] = field(default_factory=list)
    finished_s: float | None = None

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.came_s


class VirtualTime:
    """Runs one engine. `answers` by request; `steps` are what ran and how long it took."""

    def __init__(self, config: ResolvedConfig, machine: Machine | None = None) -> None:
        self.rig = Rig.build(config, can_preempt=True, eos_every=1 << 30)
        self.answers: dict[str, Answer] = {}
        self.steps: list[tuple[ExecutedPlan, float]] = []
        self._machine = machine or Machine()
        self._arrivals: deque[GenerationRequest] = deque()
        self._left_s: dict[int, float] = {}  # of preempted steps
        self._compute, self.rig.executor.run = self.rig.executor.run, self._run  # type: ignore[method-assign]
        scheduler = self.rig.engine._scheduler
        self._commit, scheduler.commit = scheduler.commit, self._commit_timed  # type: ignore[method-assign]

    def play(self, requests: Sequence[GenerationRequest], until_s: float = 1e9) -> None:
        """Submit each when it arrives and step until all is done or it is `until_s`."""
        rig, arrivals = self.rig, self._arrivals
        arrivals.extend(sorted(requests, key=lambda request: request.arrival_s))
        while rig.now_s < until_s and (arrivals or rig.engine.has_work):
            while arrivals and arrivals[0].arrival_s <= rig.now_s:
                request = arrivals.popleft()
                self.answers[request.request_id] = Answer(request.arrival_s)
                rig.engine.submit(request)
            if rig.engine.has_work:
                self._take(rig.engine.step())
            elif arrivals:
                rig.now_s = arrivals[0].arrival_s

    def _run(self, executed: ExecutedPlan) -> StepResult | None:
        rig, number = self.rig, executed.plan.number
        whole_s = self._machine.seconds(executed.step)
        left_s = self._left_s.pop(number, whole_s)
        for request in self._arrivals:
            if request.arrival_s > rig.now_s + left_s:
                break
            rig.engine.announce(request)
            if rig.executor._preempt_wanted and executed.plan.is_preemptible:
                passed_s = max(request.arrival_s - rig.now_s, 0.0)
                passed_s = min(passed_s + whole_s / LAYERS, left_s)
                rig.now_s += passed_s
                self._left_s[number] = left_s - passed_s
                return self._compute(executed)
        rig.executor.preempt(False)
        rig.now_s += left_s
        self.steps.append((executed, whole_s))
        return self._compute(executed)

    def _commit_timed(
        self, plan: StepPlan, result: StepResult, step_s: float | None
    ) -> list[Event]:
        return self._commit(plan, result, self.steps[-1][1])

    def _take(self, events: list[Event]) -> None:
        for event in events:
            answer = self.answers[event.request_id]
            if isinstance(event, TokenEvent):
                answer.token_times_s += [self.rig.now_s] * len(event.token_ids)
            elif isinstance(event, FinishEvent):
                answer.finished_s = self.rig.now_s
