"""Quiet and hostile halves in turns, and whether what another tenant feels stays within a bound."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tenora_bench.client import managing
from tenora_bench.hostile.tenant import HostileTenant, Orders, hostile_tenant
from tenora_bench.hostile.victim import MEASURED, Felt, Victim, victim
from tenora_bench.machine import machine
from tenora_bench.metrics import percentile
from tenora_bench.server import ServerUnderTest, serve
from tenora_engine.machine import usable_cpus

RATIO, PLUS_MS = 1.5, 50.0
"""The bound on what a hostile neighbour may cost: a factor on the quiet P99, and milliseconds
more."""
SETTLE_S = 3.0
WARM_S = 5.0
API_PROCESSES = 2
_PLAN, _PROMISED = "no-limits", "promised"


def measure_hostile(
    scratch: Path,
    model: Path,
    *,
    rounds: int,
    seconds: float,
    kinds: Sequence[str],
    connections: int,
    niceness: int,
    promises: Mapping[str, float],
) -> dict[str, Any]:
    """Each round is so many seconds quiet, then as many beside the hostile tenant. Both tenants
    have a plan without limits; the other's `promises` ttft_ms and tpot_ms. Raises BenchError."""
    options = ["--workers", str(API_PROCESSES), "--webhook-private-addresses"]
    with serve(scratch / "data", model, options) as server:
        keys = asyncio.run(_tenants(server, promises))
        orders = Orders(server.url, keys["hostile"], model, tuple(kinds), connections, niceness)
        with hostile_tenant(orders) as hostile:
            result = asyncio.run(_rounds(server, keys["victim"], model, hostile, rounds, seconds))
    settings = {
        "seconds": seconds,
        "kinds": list(kinds),
        "connections": connections,
        "nice": niceness,
        "promises": dict(promises),
    }
    return {"machine": machine(), "settings": settings, **result}


async def _tenants(server: ServerUnderTest, promises: Mapping[str, float]) -> dict[str, str]:
    async with managing(server.url, server.admin_key) as management:
        await management.open_plan(_PLAN)
        await management.open_plan(_PROMISED, **promises)
        plans = {"victim": _PROMISED, "hostile": _PLAN}
        return {name: await management.create_tenant(name, plan) for name, plan in plans.items()}


async def _rounds(
    server: ServerUnderTest,
    key: str,
    model: Path,
    hostile: HostileTenant,
    rounds: int,
    seconds: float,
) -> dict[str, Any]:
    quiet: list[Felt] = []
    beside: list[Felt] = []
    done: list[dict[str, Any]] = []
    async with victim(server.url, key, model) as one:
        await one.feel(WARM_S)
        await hostile.begin()  # makes its adapter and its bodies
        await hostile.stop()
        for _ in range(rounds):
            await asyncio.sleep(SETTLE_S)
            quiet.append(await one.feel(seconds))
            felt, told = await _beside(one, hostile, seconds)
            beside.append(felt)
            done.append(told)
    return {"rows": rows(quiet, beside), "failures": failures(beside), "hostile": done}


async def _beside(
    one: Victim, hostile: HostileTenant, seconds: float
) -> tuple[Felt, dict[str, Any]]:
    began_s, own_s = os.times().elapsed, _own_cpu_s()
    await hostile.begin()
    felt = await one.feel(seconds)
    own_s = _own_cpu_s() - own_s
    done = await hostile.stop()
    cores = usable_cpus() * (os.times().elapsed - began_s)
    shares = {"hostile_cpu_share": done.cpu_s / cores, "victim_cpu_share": own_s / cores}
    return felt, {"statuses": done.statuses, **shares}


def rows(quiet: Sequence[Felt], beside: Sequence[Felt]) -> list[dict[str, Any]]:
    """Compute the medians of the rounds' P99s by kind, and whether the second is within the bound
    of the first. What was not answered is no time that could be within it."""
    found = []
    failed = Counter(each.partition(":")[0] for felt in beside for each in felt.failures)
    for kind in MEASURED:
        quiet_ms, hostile_ms = _p99(quiet, kind), _p99(beside, kind)
        bound_ms = RATIO * quiet_ms + PLUS_MS
        number = failed[kind]
        found.append(
            {
                "kind": kind,
                "quiet_p99_ms": quiet_ms,
                "hostile_p99_ms": hostile_ms,
                "ratio": hostile_ms / quiet_ms,
                "bound_ms": bound_ms,
                "failed": number,
                "holds": hostile_ms <= bound_ms and not number,
                "quiet_p50_ms": _p50(quiet, kind),
                "hostile_p50_ms": _p50(beside, kind),
                "measured": sum(len(felt.times_ms[kind]) for felt in beside),
            }
        )
    return found


def failures(rounds: Sequence[Felt], most: int = 20) -> list[str]:
    """Some of what was not answered as it should be, each once."""
    return list(dict.fromkeys(each for felt in rounds for each in felt.failures))[:most]


def _p99(rounds: Sequence[Felt], kind: str) -> float:
    return median(_percentile(felt.times_ms[kind], 0.99) for felt in rounds)


def _p50(rounds: Sequence[Felt], kind: str) -> float:
    return median(_percentile(felt.times_ms[kind], 0.5) for felt in rounds)


def _percentile(values: Sequence[float], share: float) -> float:
    found = percentile(values, share)
    return float("nan") if found is None else found


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
