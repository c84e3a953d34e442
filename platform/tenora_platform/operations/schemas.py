"""Probes and the engine's state over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Version(BaseModel):
    version: str


class Readiness(BaseModel):
    """`warnings` lists problems that do not stop requests from being served, but need attention."""

    status: Literal["ready", "not_ready"]
    reason: str | None = None
    warnings: list[str] = []


class ModelView(BaseModel):
    id: str
    architecture: str
    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_tokens: int
    dtype: str
    weight_bytes: int


class TenantPages(BaseModel):
    """Pages of one tenant (or trust group); `tenant_id` is null if no tenant has the namespace."""

    tenant_id: str | None
    name: str | None
    namespace: str
    live_kv: int
    cached_kv: int


class PoolView(BaseModel):
    """The kinds of pages add up to `total_pages`. `page_map` has one character per page: `.` free,
    `L` live KV, `C` cached KV, `A` adapter."""

    total_pages: int
    page_bytes: int
    free_pages: int
    live_kv_pages: int
    cached_kv_pages: int
    adapter_pages: int
    tenants: list[TenantPages]
    page_map: str


class ResidentAdapter(BaseModel):
    digest: str
    state: str
    rank: int
    pages: int
    references: int
    last_used_s: float


class QueueView(BaseModel):
    tenant_id: str
    waiting: int


class ServiceView(BaseModel):
    """How the sequences of a class have been served since the engine started. Attainment is the
    fraction of sequences with a target that met it; null if there are none. Sequences count in the
    requested class, but wait in the class where they wait now: the lowest one, for a relegated
    sequence."""

    service_class: str
    finished: int
    ttft_attainment: float | None
    tpot_attainment: float | None
    waiting: int
    oldest_wait_s: float | None


class ClassService(ServiceView):
    """Over all tenants. `service_gap_tokens` is the largest difference of service over weight
    between two waiting tenants; null if the scheduling policy does not use it."""

    service_gap_tokens: float | None


class TenantService(ServiceView):
    """The service of one tenant; `tenant_id` null stands for all tenants that the metrics do not
    tell apart."""

    tenant_id: str | None
    name: str | None


class ReplicaView(BaseModel):
    id: str
    ready: bool
    running: int
    waiting: int
    last_step_ms: float
    resident_bytes: int
    pool: PoolView
    adapters: list[ResidentAdapter]
    queues: list[QueueView]
    classes: list[ClassService]
    tenants: list[TenantService]
    counters: dict[str, float]


class ProcessView(BaseModel):
    """`outages` maps each failing task to the reason; `restarts` (of a supervisor) says how often
    each of its processes died and was restarted."""

    id: str
    role: Literal["supervisor", "engine", "api", "worker", "all"]
    name: str
    host: str
    pid: int
    started_at: datetime
    version: str
    outages: dict[str, str]
    restarts: dict[str, int]


class ProcessList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ProcessView]


class EngineView(BaseModel):
    object: Literal["engine"] = "engine"
    model: ModelView
    replicas: list[ReplicaView]
