"""Pins: adapter versions that the operator keeps on the device. They are rows; the engine is told
all of them whenever one comes or goes, and by workers every few seconds, so that one which has
started anew has them again."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import structlog
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_engine.pages import Pin, PinState
from tenora_engine.request import AdapterRef, Tenant
from tenora_platform.auth import plan_terms, tenant_namespace
from tenora_platform.locks import lock, try_lock
from tenora_platform.memory.tables import AdapterPinRow
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.secret import ServerSecret
from tenora_platform.state import AppState
from tenora_platform.tenants.tables import PlanRow, TenantRow

TOLD_EVERY_S = 5.0
_LOCK = "adapter pins"
_SETTLE_S = 5.0  # that a pin has to come before it is answered as loading
_LOOK_S = 0.1
_log = structlog.get_logger(__name__)


class PinnedVersion(NamedTuple):
    version_id: str
    pin: Pin


async def locked(session: AsyncSession) -> None:
    """Nobody else changes pins or tells the engine of them until the transaction ends."""
    await lock(session, _LOCK)


async def servable(session: AsyncSession, of: str) -> tuple[AdapterVersionRow, AdapterRow] | None:
    """A version that requests may use, by its id, or the newest active one of an adapter by the
    adapter's."""
    query = (
        select(AdapterVersionRow, AdapterRow)
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .where((AdapterVersionRow.id == of) | (AdapterRow.id == of))
        .where(AdapterVersionRow.state.in_(SERVABLE))
        .order_by(AdapterVersionRow.state == "active", AdapterVersionRow.number)
    )
    rows = (await session.execute(query)).all()
    return None if not rows else (rows[-1][0], rows[-1][1])


async def list_pins(session: AsyncSession, secret: ServerSecret) -> list[PinnedVersion]:
    """Those of versions that can still be used, the first pinned first."""
    query = (
        select(AdapterVersionRow, TenantRow, PlanRow)
        .join(AdapterPinRow, AdapterPinRow.version_id == AdapterVersionRow.id)
        .join(TenantRow, TenantRow.id == AdapterVersionRow.tenant_id)
        .join(PlanRow, PlanRow.name == TenantRow.plan)
        .where(AdapterVersionRow.state.in_(SERVABLE))
        .order_by(AdapterPinRow.pinned_at, AdapterPinRow.version_id)
    )
    return [
        PinnedVersion(version.id, _pin(version, tenant, plan, secret))
        for version, tenant, plan in await session.execute(query)
    ]


async def is_pinned(session: AsyncSession, version_id: str) -> bool:
    return await session.get(AdapterPinRow, version_id) is not None


def add(session: AsyncSession, version: AdapterVersionRow, actor: str) -> None:
    row = AdapterPinRow(version_id=version.id, tenant_id=version.tenant_id, pinned_by=actor)
    session.add(row)


async def remove(session: AsyncSession, version_id: str) -> bool:
    """Whether there was one."""
    query = delete(AdapterPinRow).where(AdapterPinRow.version_id == version_id)
    done = await session.execute(query.returning(AdapterPinRow.version_id))
    return done.first() is not None


async def settled(engine: EngineClient, pins: list[PinnedVersion], version_id: str) -> PinState:
    """Tell the engine, and wait a moment for this one to come. Raises EngineError."""
    (wanted,) = (each.pin for each in pins if each.version_id == version_id)
    for _ in range(int(_SETTLE_S / _LOOK_S)):
        states = await engine.set_pins([each.pin for each in pins])
        same = [each for each in states if each.digest == wanted.adapter.digest]
        own = [each for each in same if each.namespace == wanted.tenant.namespace]
        state = (own or same)[0]  # two tenants' equal contents are one adapter
        if state.state != "loading":
            return state
        await asyncio.sleep(_LOOK_S)
    return state


async def keep_told(state: AppState) -> None:
    """For ever, in a worker: what the rows say, the engine is told."""
    while True:
        if state.engine.ready:
            try:
                await tell(state)
            except EngineError as error:
                _log.warning("pins not sent to the engine", reason=str(error))
        await asyncio.sleep(TOLD_EVERY_S)


async def tell(state: AppState) -> bool:
    """Whether the engine was told now; not while somebody else changes them."""
    async with state.db.admin_session() as session:
        if not await try_lock(session, _LOCK):
            return False
        pins = await list_pins(session, state.secret)
        await state.engine.set_pins([each.pin for each in pins])
    return True


def _pin(version: AdapterVersionRow, tenant: TenantRow, plan: PlanRow, secret: ServerSecret) -> Pin:
    assert version.digest is not None  # a constraint of the table: what is servable is complete
    assert version.rank is not None
    terms = plan_terms(plan)
    return Pin(
        Tenant(
            key=tenant.id,
            namespace=tenant_namespace(secret, tenant.id, tenant.trust_group),
            weight=terms.weight,
            tier=terms.sla_class,
            min_memory_share=terms.memory_share or 0.0,
            max_memory_share=terms.memory_share or 1.0,
        ),
        AdapterRef(version.digest, version.rank),
    )
