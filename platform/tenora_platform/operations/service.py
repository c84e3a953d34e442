"""The engine's numbers with the tenants' names to them. It knows the engine's statistics and which
namespace is whose; it changes nothing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.config import ModelInfo
from tenora_engine.events import EngineStats, PoolStats
from tenora_engine.telemetry import OTHER, QueueStats, ServiceMeter, TelemetryStats
from tenora_platform.operations.schemas import (
    ClassService,
    EngineView,
    ModelView,
    PoolView,
    ProcessView,
    QueueView,
    ReplicaView,
    ResidentAdapter,
    ServiceView,
    TenantPages,
    TenantService,
)
from tenora_platform.processes.presence import Process
from tenora_platform.reconciliation.told import proof_warnings
from tenora_platform.registry.store_told import store_warnings
from tenora_platform.state import AppState
from tenora_platform.tenants.namespaces import names_of, owners_of
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.leftovers import unbilled_warnings


async def engine_view(session: AsyncSession, state: AppState, stats: EngineStats) -> EngineView:
    """One replica's snapshot, for the operator."""
    owners = await owners_of(session, state.secret, stats.pool.tenants)
    names = await names_of(session, _told_apart(stats.telemetry))
    replica = ReplicaView(
        id="local",
        ready=state.engine.ready,
        running=stats.running,
        waiting=stats.waiting,
        last_step_ms=stats.last_step_ms,
        resident_bytes=stats.resident_bytes,
        pool=_pool(stats.pool, owners),
        adapters=[
            ResidentAdapter(
                digest=adapter.digest,
                state=adapter.state,
                rank=adapter.rank,
                pages=adapter.pages,
                references=adapter.references,
                last_used_s=adapter.last_used_s,
            )
            for adapter in stats.adapters
        ],
        queues=[
            QueueView(tenant_id=key, waiting=waiting)
            for key, waiting in sorted(stats.waiting_by_tenant.items())
        ],
        classes=_classes(stats.telemetry),
        tenants=_tenants(stats.telemetry, names),
        counters=stats.counters,
    )
    return EngineView(model=_model(state.engine.model), replicas=[replica])


def process_view(process: Process) -> ProcessView:
    return ProcessView(
        id=process.id,
        role=process.role,
        name=process.name,
        host=process.host,
        pid=process.pid,
        started_at=process.started,
        version=process.version,
        outages=process.outages,
        restarts=process.restarts,
    )


@dataclass(frozen=True, slots=True)
class Warning:
    """`about`: what it is to be looked at on. `text` is the operator's; `public`, where it is not
    that, names no host."""

    about: Literal["unbilled", "books", "store", "workers"]
    text: str
    public: str | None = None

    def words(self, *, detailed: bool) -> str:
        return self.text if detailed or self.public is None else self.public

    @property
    def key(self) -> str:
        """The same while nothing but a count in its text changes."""
        return f"{self.about}:{re.sub(r'[0-9]+', '#', self.text)[:200]}"


def told_warnings(state: AppState) -> list[Warning]:
    """What does not keep requests from being served, of any process, and wants looking at."""
    presence = state.presence
    counted = state.unbilled.counted or presence.unbilled or (0, 0)
    workers = []
    if presence.workers_missing:
        text = "No worker is running: uploads are not checked, and usage is not stored."
        workers.append(Warning("workers", text))
    workers += [
        _failing_worker(each)
        for each in presence.others or []
        if each.role == "worker" and each.outages
    ]
    return [
        *(Warning("unbilled", text) for text in unbilled_warnings(*counted)),
        *(Warning("books", text) for text in proof_warnings(state.proof.told or presence.proof)),
        *(Warning("store", text) for text in store_warnings(state.store.told or presence.store)),
        *workers,
    ]


def _failing_worker(worker: Process) -> Warning:
    why = ", ".join(f"{work} ({why})" for work, why in sorted(worker.outages.items()))
    return Warning(
        "workers",
        f"Background tasks of the worker on {worker.host} are failing: {why}",
        f"Background tasks of a worker are failing: {why}",
    )


ENGINE, REDIS = "engine", "redis"


def failing(state: AppState) -> list[str]:
    """By key: the work of any process that fails, Redis where it does not answer."""
    others = state.presence.others
    if others is None:
        return [REDIS]
    return [f"{each.id} {work}" for each in others for work in each.outages]


def wrong(state: AppState) -> list[str]:
    """By key, all that an operator should look at: of each it is kept since when."""
    engine = [] if state.engine.ready else [ENGINE]
    return [*engine, *failing(state), *(each.key for each in told_warnings(state))]


def _told_apart(telemetry: TelemetryStats) -> set[str]:
    """The tenants that the metrics name."""
    meters = {each.tenant for each in telemetry.meters}
    return (meters | {each.tenant for each in telemetry.queues}) - {OTHER}


def _pool(pool: PoolStats, owners: dict[str, list[TenantRow]]) -> PoolView:
    tenants = []
    for namespace, pages in sorted(pool.tenants.items()):
        rows = owners.get(namespace, [])
        tenants.append(
            TenantPages(
                tenant_id=rows[0].id if len(rows) == 1 else None,
                name=" + ".join(row.name for row in rows) or None,
                namespace=namespace,
                live_kv=pages.get("live_kv", 0),
                cached_kv=pages.get("cached_kv", 0),
            )
        )
    return PoolView(
        total_pages=pool.total_pages,
        page_bytes=pool.page_bytes,
        free_pages=pool.free_pages,
        live_kv_pages=pool.live_kv_pages,
        cached_kv_pages=pool.cached_kv_pages,
        adapter_pages=pool.adapter_pages,
        tenants=tenants,
        page_map=pool.page_map,
    )


def _classes(telemetry: TelemetryStats) -> list[ClassService]:
    gaps = telemetry.service_gaps
    asked_for = [meter.service_class for meter in telemetry.meters]
    waited_in = [queue.service_class for queue in telemetry.queues]
    return [
        ClassService(
            **vars(
                _served(
                    name,
                    [meter for meter in telemetry.meters if meter.service_class == name],
                    [queue for queue in telemetry.queues if queue.service_class == name],
                )
            ),
            service_gap_tokens=gaps.get(name),
        )
        for name in dict.fromkeys((*gaps, *asked_for, *waited_in))
    ]


def _tenants(telemetry: TelemetryStats, names: Mapping[str, str]) -> list[TenantService]:
    """By tenant and class, the rest last."""
    meters: dict[tuple[str, str], list[ServiceMeter]] = defaultdict(list)
    queues: dict[tuple[str, str], list[QueueStats]] = defaultdict(list)
    for meter in telemetry.meters:
        meters[meter.tenant, meter.service_class].append(meter)
    for queue in telemetry.queues:
        queues[queue.tenant, queue.service_class].append(queue)
    keys = sorted({*meters, *queues}, key=lambda key: (key[0] == OTHER, key))
    return [
        TenantService(
            **vars(_served(name, meters[tenant, name], queues[tenant, name])),
            tenant_id=None if tenant == OTHER else tenant,
            name=names.get(tenant),
        )
        for tenant, name in keys
    ]


def _served(name: str, meters: list[ServiceMeter], queues: list[QueueStats]) -> ServiceView:
    def total(field: str) -> int:
        return sum(getattr(meter, field) for meter in meters)

    return ServiceView(
        service_class=name,
        finished=sum(sum(meter.finished.values()) for meter in meters),
        ttft_attainment=_part(total("ttft_met"), total("ttft_promised")),
        tpot_attainment=_part(total("tpot_met"), total("tpot_promised")),
        waiting=sum(queue.waiting for queue in queues),
        oldest_wait_s=max((queue.oldest_wait_s for queue in queues), default=None),
    )


def _part(met: int, promised: int) -> float | None:
    return met / promised if promised else None


def _model(model: ModelInfo) -> ModelView:
    return ModelView(
        id=model.id,
        architecture=model.architecture,
        num_layers=model.num_layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        vocab=model.vocab,
        context_tokens=model.context_tokens,
        dtype=model.dtype,
        weight_bytes=model.weight_bytes,
    )
