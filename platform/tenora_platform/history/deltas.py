"""What an engine's counters have moved since they were last read, an engine that began anew
included. Pure; it knows neither rows nor when it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tenora_engine.events import EngineStats
from tenora_engine.telemetry import OTHER, Histogram, ServiceMeter

_COUNTERS = ("steps", "kv_evictions", "adapter_evictions")


class Totals(msgspec.Struct, frozen=True):
    """What an engine has counted since `since_s` (unix time), as it is kept between two looks;
    `restarts` by supervisor and part."""

    since_s: float = 0.0
    meters: list[ServiceMeter] = []
    loads: dict[str, int] = {}
    load_s: float = 0.0
    counters: dict[str, float] = {}
    restarts: dict[str, int] = {}


class Served(msgspec.Struct, frozen=True):
    """What one tenant's class (tenant "": of no one by name) had in between, by measure."""

    tenant_id: str
    service_class: str
    measures: dict[str, Any]


def totals_of(stats: EngineStats, restarts: Mapping[str, int]) -> Totals:
    telemetry = stats.telemetry
    loads = telemetry.adapter_loads
    return Totals(
        since_s=telemetry.since_s,
        meters=telemetry.meters,
        loads={tier: sum(times.counts) for tier, times in loads.items()},
        load_s=sum(times.sum_s for times in loads.values()),
        counters={name: stats.counters.get(name, 0.0) for name in _COUNTERS},
        restarts=dict(restarts),
    )


def is_same_engine(now: Totals, before: Totals) -> bool:
    """Whether it has counted on; else it began from zero."""
    fewer = any(value < before.counters.get(name, 0) for name, value in now.counters.items())
    return now.since_s == before.since_s and not fewer


def served_since(now: Totals, before: Totals) -> list[Served]:
    """Of each tenant and class that has moved."""
    known = {(meter.tenant, meter.service_class): meter for meter in before.meters}
    same = is_same_engine(now, before)
    found = []
    for meter in now.meters:
        earlier = known.get((meter.tenant, meter.service_class)) if same else None
        measures = _moved(meter, earlier or ServiceMeter())
        if measures:
            tenant_id = "" if meter.tenant == OTHER else meter.tenant
            found.append(Served(tenant_id, meter.service_class, measures))
    return found


def engine_since(now: Totals, before: Totals) -> dict[str, Any]:
    """Loads by tier, evictions, steps; restarts of parts, whichever supervisor told of them."""
    same = is_same_engine(now, before)
    earlier = before if same else Totals()
    return {
        "loads": _more_of(now.loads, earlier.loads),
        "load_s": now.load_s - earlier.load_s,
        **{name: int(now.counters[name] - earlier.counters.get(name, 0)) for name in now.counters},
    }


def restarts_since(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """By part, of "supervisor/part" -> how often; of a supervisor not known before all of them."""
    moved: dict[str, int] = {}
    for name, count in now.items():
        more = count - before.get(name, 0)
        if more > 0:
            part = name.partition("/")[2]
            moved[part] = moved.get(part, 0) + more
    return moved


def _moved(now: ServiceMeter, before: ServiceMeter) -> dict[str, Any]:
    """Only what is not zero."""
    ended = _more_of(now.finished, before.finished)
    found: dict[str, Any] = {
        "finished": sum(ended.values()),
        "ended": ended,
        "refused": _more_of(now.refused, before.refused),
    }
    for name in _SUMS:
        found[name] = getattr(now, name) - getattr(before, name)
    for name in ("ttft", "tpot", "queue"):
        counts, sum_s = _histogram(getattr(now, name), getattr(before, name))
        found[name], found[f"{name}_s"] = counts, sum_s
    return {name: value for name, value in found.items() if value}


_SUMS: Sequence[str] = (
    "ttft_promised",
    "ttft_met",
    "tpot_promised",
    "tpot_met",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "service",
    "preemptions",
    "relegations",
)


def _histogram(now: Histogram, before: Histogram) -> tuple[list[int], float]:
    """Without counts: an empty list."""
    counts = [own - less for own, less in zip(now.counts, before.counts, strict=True)]
    return (counts, now.sum_s - before.sum_s) if any(counts) else ([], 0.0)


def _more_of(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {
        name: count - before.get(name, 0)
        for name, count in now.items()
        if count != before.get(name, 0)
    }
