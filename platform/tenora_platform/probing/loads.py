"""How long it takes to have an adapter on the device, by the tier that it comes from."""

from __future__ import annotations

from collections.abc import Iterable

from tenora_engine.events import EngineStats, Residency, UsageRecord
from tenora_platform.probing.schemas import TIERS, Load


def loads_of(usage: Iterable[UsageRecord], stats: EngineStats) -> list[Load]:
    """A version's own, where it was loaded for one of `usage`; else what loads took on average."""
    measured: dict[Residency, float] = {"device": 0.0}
    for record in usage:
        if record.residency is not None and record.adapter_load_ms > 0:
            measured.setdefault(record.residency, record.adapter_load_ms)
    loads = []
    for tier in TIERS:
        if tier in measured:
            loads.append(Load(tier=tier, ms=round(measured[tier], 3), how="measured"))
            continue
        had = stats.telemetry.adapter_loads.get(tier)
        count = 0 if had is None else sum(had.counts)
        mean = None if had is None or not count else round(1000 * had.sum_s / count, 3)
        loads.append(Load(tier=tier, ms=mean, how="predicted", loads=count))
    return loads


def predicted_loads(stats: EngineStats) -> list[Load]:
    """Of an adapter that has never been loaded."""
    return loads_of((), stats)
