"""All adapter versions and the best tier that has each: the engine says what is on the device and
in host memory, Redis what it keeps, and all of them are in the object store."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.pages import ArenaPages
from tenora_platform.memory.schemas import AdapterPlace, AdapterPlacePage, Tier
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.tenants.tables import TenantRow

Where = Literal["device", "host", "shared", "store"]
_HOT_MAX = 1000  # as many as the engines keep in their table of used adapters


async def adapter_places(
    session: AsyncSession,
    redis: Redis,
    pages: ArenaPages,
    *,
    tier: Where | None,
    q: str | None,
    after: str | None,
    limit: int,
) -> AdapterPlacePage:
    """The newest first; of one tier, or whose name or tenant begins with `q`."""
    near = {each.digest: _device(each.arriving) for each in pages.adapters}
    for each in pages.host:
        near.setdefault(each.digest, "host")
    shared = {each for each in await _shared(redis, pages.shared_prefix) if each not in near}
    query = (
        select(AdapterVersionRow, AdapterRow.name, TenantRow.name)
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .join(TenantRow, TenantRow.id == AdapterVersionRow.tenant_id)
        .where(AdapterVersionRow.state.in_(SERVABLE))
        .order_by(AdapterVersionRow.id.desc())
        .limit(limit + 1)
    )
    if tier is not None:
        query = query.where(_is_in(tier, near, shared))
    if q:
        matches = AdapterRow.name.istartswith(q, autoescape=True)
        query = query.where(matches | TenantRow.name.istartswith(q, autoescape=True))
    if after is not None:
        query = query.where(AdapterVersionRow.id < after)
    found = [
        _place(version, name, tenant, pages, near.get(version.digest or ""), shared)
        for version, name, tenant in await session.execute(query)
    ]
    return AdapterPlacePage.of(found, limit)


def _device(arriving: bool) -> Tier:
    return "loading" if arriving else "device"


def _is_in(tier: Where, near: dict[str, Tier], shared: Collection[str]) -> ColumnElement[bool]:
    digest = AdapterVersionRow.digest
    if tier == "store":
        return digest.not_in([*near, *shared])
    if tier == "shared":
        return digest.in_(list(shared))
    wanted = ("device", "loading") if tier == "device" else ("host",)
    return digest.in_([each for each, where in near.items() if where in wanted])


async def _shared(redis: Redis, prefix: str) -> list[str]:
    """Digests of which Redis has the packed pages, of those that engines have used of late; none
    while it is away."""
    if not prefix:
        return []
    table = prefix.rstrip(":").replace(":adapter:", ":adapter-heat:", 1)
    try:
        hot: Any = await redis.zrevrange(table, 0, _HOT_MAX - 1)
        digests = [each.decode(errors="replace") for each in hot]
        async with redis.pipeline(transaction=False) as pipe:
            for digest in digests:
                pipe.exists(prefix + digest)
            there = await pipe.execute()
    except (RedisError, OSError):
        return []
    return [digest for digest, is_there in zip(digests, there, strict=True) if is_there]


def _place(
    version: AdapterVersionRow,
    name: str,
    tenant: str,
    pages: ArenaPages,
    near: Tier | None,
    shared: Collection[str],
) -> AdapterPlace:
    digest = version.digest or ""
    on_device = next((each for each in pages.adapters if each.digest == digest), None)
    on_host = next((each for each in pages.host if each.digest == digest), None)
    pin = next((each for each in pages.pins if each.digest == digest), None)
    here = on_device or on_host
    return AdapterPlace(
        id=version.id,
        adapter_id=version.adapter_id,
        name=name,
        version=version.number,
        tenant_id=version.tenant_id,
        tenant=tenant,
        digest=digest,
        rank=version.rank or 0,
        tier=near or ("shared" if digest in shared else "store"),
        pages=on_device.num_pages if on_device else on_host.pages if on_host else 0,
        references=on_device.references if on_device else 0,
        last_used_at=(here.last_used_s or None) if here else None,
        pinned=on_device is not None and on_device.pinned,
        pin_state=None if pin is None else pin.state,
        pin_reason=None if pin is None else pin.reason,
    )
