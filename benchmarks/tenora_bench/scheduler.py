"""What the scheduler itself takes: the real time of `schedule` and `commit` in a simulated engine
that is full, with a long queue behind it; behind `tenora bench scheduler`."""

from __future__ import annotations

import statistics
import time
from typing import Any

from tenora_bench.cache.simulator import Limits, Setup, Simulator
from tenora_bench.cache.timing import h200_llama3_8b
from tenora_bench.cache.workloads import Demand, zipf_drift
from tenora_bench.metrics import percentile
from tenora_engine.memory.policies import make_policy
from tenora_engine.scheduling.plan import StepPlan, StepResult


class _TimedSimulator(Simulator):
    """Notes the seconds of each step with a full batch. Those in which sequences begin or end are
    told from those that only go on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steady_s: list[float] = []
        self.changing_s: list[float] = []
        self._members: frozenset[int] = frozenset()

    def one_step(self) -> bool:
        """Returns whether the batch was full."""
        self._loader.deliver(self._now_s)
        if not self.scheduler.has_work:
            self._sleep()
            return False
        started = time.perf_counter()
        plan = self.scheduler.schedule()
        planned_s = time.perf_counter() - started
        if not plan.scheduled:
            self._take_in(self.scheduler.take_events())
            return False
        full = len(plan.scheduled) == self._setup.limits.max_running
        result = self._sample(plan)
        self._now_s += 0.02
        started = time.perf_counter()
        events = self.scheduler.commit(plan, result, 0.02)
        seconds = planned_s + time.perf_counter() - started
        self._take_in(events)
        if full:
            (self.steady_s if self._is_steady(plan, result) else self.changing_s).append(seconds)
        return full

    def _is_steady(self, plan: StepPlan, result: StepResult) -> bool:
        members = frozenset(item.sequence.number for item in plan.scheduled)
        same = members == self._members
        self._members = members
        return same and len(result.token_ids) == len(self.scheduler.book.running)


def measure_scheduler(running: int, waiting: int, steps: int, policy: str) -> dict[str, Any]:
    """Microseconds of `steps` steps with `running` sequences in the batch and, to begin with,
    `waiting` in the queue behind them; a sixteenth of the arena's pages is left to be evicted."""
    trace = zipf_drift(Demand(requests=running + waiting, rate=1e6, adapters=64))
    setup = Setup(
        h200_llama3_8b(),
        device_bytes=64 * 1024**3,
        limits=Limits(max_running=running, max_step_tokens=max(8192, running)),
    )
    simulator = _TimedSimulator(setup, make_policy(policy), trace)
    simulator._now_s += 1.0
    simulator._arrive()
    full_steps = 0
    while full_steps < steps and simulator.scheduler.book.num_waiting:
        full_steps += simulator.one_step()
    times = simulator.steady_s + simulator.changing_s
    return {
        "running": running,
        "waiting": waiting,
        "waiting_at_the_end": simulator.scheduler.book.num_waiting,
        "steps": full_steps,
        "policy": policy,
        "median_us": _us(statistics.median(times)) if times else None,
        "p99_us": _us(percentile(times, 0.99)),
        "steady_median_us": _us(statistics.median(simulator.steady_s)) if times else None,
        "max_us": _us(max(times)) if times else None,
    }


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
