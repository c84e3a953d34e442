"""Bursty and adversarial traces by simulation: how many requests of each tenant come in time at
twice the load at which order of arrival still does right by everyone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome
from tenora_bench.trace import TraceRequest

if TYPE_CHECKING:
    from tenora_bench.cache.simulator import Replay, Targets
    from tenora_engine.config import SchedulingPolicy

SEEDS = 5
REQUESTS = 1500
RATE = 4.0
TENANTS = 12
ADAPTERS = 24
DEVICE_BYTES = 80 * 1024**3  # all adapters and most prefixes: only time is short
CLASSES = ("interactive", "standard", "batch")
LEAST = 0.9
SPEEDS = (1 / 8, 64.0)  # between which the load is looked for
TOLERANCE = 0.1  # of a load


@dataclass(frozen=True)
class Trace:
    """One workload with the TTFT and TPOT targets (ms) of its classes, in the order of CLASSES."""

    workload: str
    targets_ms: tuple[tuple[float, float], ...]


TRACES = (
    Trace("azure-code", ((10_000.0, 100.0), (30_000.0, 200.0), (60_000.0, 500.0))),
    Trace("overload", ((500.0, 100.0), (2_000.0, 200.0), (30_000.0, 500.0))),
)


def classed(trace: Sequence[TraceRequest]) -> list[TraceRequest]:
    """The tenants in the three classes in turn."""
    names = sorted({request.tenant for request in trace})
    place = {name: CLASSES[number % len(CLASSES)] for number, name in enumerate(names)}
    return [replace(request, sla_class=place[request.tenant]) for request in trace]


def run(options: Options) -> Outcome:
    from tenora_bench.cache.simulator import Targets
    from tenora_bench.cache.workloads import Demand, generate

    found: dict[str, list[dict[str, Any]]] = {}
    for each in TRACES:
        targets = {
            name: Targets(*pair) for name, pair in zip(CLASSES, each.targets_ms, strict=True)
        }
        found[each.workload] = []
        for seed in range(options.seed, options.seed + (options.rounds or SEEDS)):
            demand = Demand(REQUESTS, RATE, seed, ADAPTERS, TENANTS)
            trace = classed(generate(each.workload, demand))
            found[each.workload].append(one_seed(trace, targets))
    return summarise(found)


def one_seed(trace: Sequence[TraceRequest], targets: dict[str, Targets]) -> dict[str, Any]:
    """The highest speed at which either order serves every tenant, and what each tenant attains
    at twice that of order of arrival."""

    def least_at(policy: SchedulingPolicy) -> Callable[[float], float]:
        return lambda speed: least(attained(trace, targets, policy, speed))

    speeds = {"fcfs": highest(least_at("fcfs")), "sla": highest(least_at("sla"))}
    base = speeds["fcfs"]
    result: dict[str, Any] = {"speeds": speeds, "rate": RATE}
    if base is not None:
        for policy in ("fcfs", "sla"):
            result[policy] = attained(trace, targets, policy, 2 * base)
    return result


def attained(
    trace: Sequence[TraceRequest],
    targets: dict[str, Targets],
    policy: SchedulingPolicy,
    speed: float,
) -> dict[str, float]:
    """By tenant, the part of its requests that had their first token and all others in time."""
    from tenora_bench.cache.simulator import Limits, Setup, simulate
    from tenora_bench.cache.timing import h200_llama3_8b
    from tenora_engine.memory.policies import make_policy

    limits = Limits(scheduling_policy=policy)
    setup = Setup(h200_llama3_8b(), DEVICE_BYTES, limits=limits, targets=targets, late="relegate")
    return by_tenant(simulate(setup, make_policy("joint"), trace, speed))


def by_tenant(replay: Replay) -> dict[str, float]:
    from tenora_bench.metrics import summarise as summary

    tenants = summary(replay.records, 0.0, 0.0)["tenants"]  # each record has targets of its own
    return {name: figures["slo_attainment"] for name, figures in tenants.items()}


def least(tenants: dict[str, float]) -> float:
    return min(tenants.values())


def highest(at: Callable[[float], float]) -> float | None:
    """The highest speed at which `at` is LEAST or more, by doubling from the slowest up to the
    first that is not, then by bisection; None where even the slowest is too fast."""
    slowest, fastest = SPEEDS
    low, high = None, slowest
    while high <= fastest and at(high) >= LEAST:
        low, high = high, 2 * high
    if low is None or high > fastest:
        return low
    while high / low > 1 + TOLERANCE:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if at(middle) >= LEAST else (low, middle)
    return low


def summarise(found: dict[str, list[dict[str, Any]]]) -> Outcome:
    """Medians over the seeds; a seed where order of arrival serves nobody at any speed counts for
    nothing."""
    claims, rows = [], []
    for workload, seeds in found.items():
        counted = [seed for seed in seeds if "sla" in seed]
        if not counted:
            claims.append(Claim(f"{workload}: no load serves all", float("nan"), "at least", LEAST))
            continue
        least_sla = statistics.median(least(seed["sla"]) for seed in counted)
        others = [least({t: v for t, v in s["sla"].items() if t != "noisy"}) for s in counted]
        loads = {
            policy: statistics.median(s["speeds"][policy] or 0.0 for s in counted) * RATE
            for policy in ("fcfs", "sla")
        }
        rows.append(
            (
                f"{workload}, {len(counted)} seeds",
                loads["fcfs"],
                loads["sla"],
                statistics.median(least(seed["fcfs"]) for seed in counted),
                least_sla,
                statistics.median(others),
            )
        )
        what = f"{workload}: least attainment of a tenant at twice the load of order of arrival"
        claims.append(Claim(what, least_sla, "at least", LEAST))
    return Outcome(
        claims=claims,
        columns=(
            "trace",
            "load with all served, fcfs, requests/s",
            "sla",
            "at twice fcfs's: least tenant, fcfs",
            "sla",
            "sla, the noisy one aside",
        ),
        rows=rows,
        details={"seeds": found},
    )


EXPERIMENT = Experiment("bursts", "tenants served in time on bursty traces (simulated)", run)
