"""Load: how a policy does as requests come faster, and the fastest at which the mean TTFT still
holds. Each replay is a simulation of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import msgspec

from tenora_bench.cache.miss_costs import replay_miss_cost_s
from tenora_bench.cache.report import figures
from tenora_bench.cache.simulator import Setup, simulate
from tenora_bench.client import BenchError
from tenora_bench.trace import TraceRequest
from tenora_engine.config import SchedulingPolicy
from tenora_engine.memory.policies import POLICIES, make_policy

SPEEDS = (1 / 64, 64.0)  # between which a peak is looked for
TOLERANCE = 0.02  # of a peak


class Replays:
    """One trace and one system at any speed. A system is an eviction policy, under the scheduler
    of `setup` or, as `elora@fcfs`, under the one named. Raises BenchError for an unknown name."""

    def __init__(
        self,
        setup: Setup,
        system: str,
        trace: Sequence[TraceRequest],
    ) -> None:
        policy, at, scheduler = system.partition("@")
        if policy not in POLICIES:
            raise BenchError(f"no policy {policy!r}; there are {', '.join(POLICIES)}")
        if at and scheduler not in get_args(SchedulingPolicy):
            names = ", ".join(get_args(SchedulingPolicy))
            raise BenchError(f"no scheduler {scheduler!r}; there are {names}")
        if at:
            limits = msgspec.structs.replace(setup.limits, scheduling_policy=scheduler)
            setup = replace(setup, limits=limits)
        self._setup = setup
        self._policy = policy
        self._trace = trace
        self._known: dict[float, dict[str, Any]] = {}

    def at(self, speed: float) -> dict[str, Any]:
        """The figures, with `miss_cost_s`; a speed is replayed once."""
        if speed not in self._known:
            replay = simulate(self._setup, make_policy(self._policy), self._trace, speed)
            paid_s = replay_miss_cost_s(self._setup, self._trace, replay)
            self._known[speed] = figures(replay, self._setup) | {"miss_cost_s": paid_s}
        return self._known[speed]


def find_peak(
    at: Callable[[float], dict[str, Any]],
    ttft_max_ms: float,
    speeds: tuple[float, float] = SPEEDS,
    tolerance: float = TOLERANCE,
    near: float = 1.0,
    step: float = 2.0,
) -> dict[str, Any]:
    """Bisection over the logarithm of the speed for the highest at which the mean TTFT is below
    `ttft_max_ms` and nothing is refused, looked for from `near` outwards by `step`, then its
    square and so on. `speed` is None where even the lowest is too fast; the
    highest holds where it is the answer. Also every point looked at, by rising speed."""
    points: dict[float, dict[str, Any]] = {}

    def holds(speed: float) -> bool:
        points[speed] = result = at(speed)
        ttft_ms = result["mean_ttft_ms"]
        return not result["failed"] and ttft_ms is not None and ttft_ms < ttft_max_ms

    low, high = _bracket(holds, speeds, near, step)
    while low is not None and high is not None and high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return {
        "speed": low,
        "points": [{"speed": speed, **points[speed]} for speed in sorted(points)],
    }


def _bracket(
    holds: Callable[[float], bool], speeds: tuple[float, float], near: float, step: float
) -> tuple[float | None, float | None]:
    """The fastest speed that holds and the slowest that does not, of those looked at."""
    slowest, fastest = speeds
    speed = min(max(near, slowest), fastest)
    if holds(speed):
        while speed < fastest:
            faster = min(step * speed, fastest)
            if not holds(faster):
                return speed, faster
            speed, step = faster, step * step
        return speed, None
    while speed > slowest:
        slower = max(speed / step, slowest)
        if holds(slower):
            return slower, speed
        speed, step = slower, step * step
    return None, speed
