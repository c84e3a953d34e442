"""The canary's two tenants, made on first use: each with a key of this process' own and an adapter
of the same name. It asks them nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.request import AdapterRef
from tenora_platform.auth import tenant_namespace
from tenora_platform.canary.adapter import fitting, make_adapter
from tenora_platform.canary.tables import CanaryRow
from tenora_platform.state import AppState
from tenora_platform.tenants import repository as tenants
from tenora_platform.tenants.key_service import ApiKeyService
from tenora_platform.tenants.schemas import ApiKeyCreate, PlanBody, TenantCreate
from tenora_platform.tenants.service import TenantService

PLAN = "canary"
SHARED = "canary"
"""An adapter of this name each of them has, with other weights."""
OWN = "canary-neighbour"
"""An adapter that the neighbour alone has."""

_ACTOR = "canary"
_SEEDS = {"canary": 1, "neighbour": 2}
_KEY_HOLDS = timedelta(days=7)
_KEY_LEFT = timedelta(days=1)
_CHECKED_WITHIN_S = 120.0


class CanaryError(Exception):
    """The canary cannot be set up or asked; the message says why."""


@dataclass(frozen=True, slots=True)
class CanaryTenant:
    """One of the two, ready to ask."""

    id: str
    key: str
    key_id: str
    key_until: datetime
    names: tuple[str, ...]  # of its adapters: of SHARED, and the neighbour's of OWN
    adapter: AdapterRef  # the first
    namespace: str


async def ready_tenant(state: AppState, http: httpx.AsyncClient, role: str) -> CanaryTenant:
    """The tenant with a fresh key and its adapters. Raises CanaryError."""
    async with state.db.admin_session() as session:
        tenant_id = await _tenant(state, session, role)
        keys = ApiKeyService(
            session, tenant_id=tenant_id, audit=state.audit, secret=state.secret, actor=_ACTOR
        )
        until = datetime.now(UTC) + _KEY_HOLDS
        key = await keys.create(ApiKeyCreate(name="canary", expires_at=until))
    kinds = (SHARED,) if role == "canary" else (SHARED, OWN)
    names = tuple(fitting(kind, state.engine.model) for kind in kinds)
    found = [await _adapter(state, http, key.key, name, _SEEDS[role]) for name in names]
    return CanaryTenant(
        id=tenant_id,
        key=key.key,
        key_id=key.id,
        key_until=until - _KEY_LEFT,
        names=names,
        adapter=found[0],
        namespace=tenant_namespace(state.secret, tenant_id, None),
    )


async def _tenant(state: AppState, session: AsyncSession, role: str) -> str:
    found = await session.get(CanaryRow, role)
    if found is not None:
        return found.tenant
    service = TenantService(session, audit=state.audit, actor=_ACTOR)
    if await tenants.get_plan(session, PLAN) is None:
        await service.put_plan(PLAN, PlanBody())
    row = await service.create_tenant(TenantCreate(name=f"Tenora {role}", plan=PLAN), internal=True)
    await session.execute(insert(CanaryRow).values(role=role, tenant=row.id))
    return row.id


async def _adapter(
    state: AppState, http: httpx.AsyncClient, key: str, name: str, seed: int
) -> AdapterRef:
    """The newest active version, uploaded if there is none that fits this base model."""
    auth = {"authorization": f"Bearer {key}"}
    found = await http.get(f"/v1/adapters/{name}", headers=auth)
    if found.status_code == 404:
        config, weights = make_adapter(state.engine.model, seed)
        files = {"adapter_config": config, "weights": weights}
        sent = await http.post("/v1/adapters", headers=auth, data={"name": name}, files=files)
        if sent.status_code != 202:
            raise CanaryError(f"its adapter was refused: {sent.text[:300]}")
    async with asyncio.timeout(_CHECKED_WITHIN_S):
        while True:
            found = await http.get(f"/v1/adapters/{name}", headers=auth)
            if found.status_code != 200:
                raise CanaryError(f"its adapter cannot be read: {found.text[:300]}")
            versions = found.json()["versions"]
            for version in versions:
                if version["state"] == "active":
                    return AdapterRef(version["digest"], version["rank"])
                if version["state"] == "rejected":
                    raise CanaryError(f"its adapter was rejected: {version.get('report')}")
            await asyncio.sleep(0.2)
