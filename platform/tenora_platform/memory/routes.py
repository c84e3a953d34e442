"""HTTP routes of the operator's view of memory: the arena, its last hour, adapters by tier, and
what an operator may do about them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_engine.errors import AdapterBusyError, InvalidRequestError
from tenora_platform.auth import CurrentAdmin, require_role, tenant_namespace
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.memory import pins
from tenora_platform.memory.history import EVERY_S, PageHistory
from tenora_platform.memory.names import NameReader
from tenora_platform.memory.schemas import (
    AdapterEviction,
    AdapterPin,
    AdapterPlacePage,
    EnginePages,
    PageSample,
)
from tenora_platform.memory.schemas import PageHistory as PageHistoryView
from tenora_platform.memory.tiers import Where, adapter_places
from tenora_platform.memory.view import engine_pages
from tenora_platform.operators.roles import READERS
from tenora_platform.registry.repository import trust_group
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, AppState, ReadyEngine, State, answered
from tenora_platform.tenants.repository import get_tenant

router = APIRouter(prefix="/admin/v1", tags=["admin"], route_class=EdgeRoute)
_READ = [Depends(require_role(*READERS))]
_ACT = [Depends(require_role("operator"))]

ForTenant = Annotated[
    str | None,
    Query(
        description=(
            "A tenant's id (tenant_...), not its name: show what would be evicted next if "
            "this tenant needed memory"
        )
    ),
]
At = Annotated[
    float | None,
    Query(ge=0, le=1e11, description="Unix time in seconds: also return the arena as it was then"),
]


@router.get("/engine/pages", dependencies=_READ)
async def read_pages(
    state: State, engine: ReadyEngine, for_tenant: ForTenant = None
) -> EnginePages:
    """Get the page arena as it is now: runs of pages by kind and owner, tenants against their
    shares, what would be evicted next and why, and the adapters on the device and in host
    memory."""
    namespace = "" if for_tenant is None else await _namespace(state, for_tenant)
    pages = await answered(engine.pages(namespace))
    return engine_pages(pages, await NameReader(state).of(pages))


@router.get("/engine/pages/history", dependencies=_READ)
async def read_page_history(state: State, at: At = None) -> PageHistoryView:
    """Get pages by kind over the last hour, kept across restarts; with `at` also the arena at that
    time."""
    history = PageHistory(state.redis, state.seal)
    samples = [_sample(each.slot, each.kinds) for each in await history.samples()]
    if at is None:
        return PageHistoryView(every_s=EVERY_S, data=samples)
    pages = await history.at(at)
    if pages is None:
        raise NotFoundError(
            "There is no sample for that time. The last hour is kept, while a worker and the "
            "engine run. Leave `at` out to see which times there are.",
            param="at",
        )
    view = engine_pages(pages, await NameReader(state).of(pages))
    return PageHistoryView(every_s=EVERY_S, data=samples, pages=view)


@router.get("/engine/adapters", dependencies=_READ)
async def list_adapter_places(
    state: State,
    session: AdminSession,
    engine: ReadyEngine,
    tier: Annotated[
        Where | None, Query(description="Only adapters whose best tier is this one")
    ] = None,
    q: Annotated[
        str | None,
        Query(
            max_length=120,
            description="Only adapters whose name, or whose tenant's name, starts with this",
        ),
    ] = None,
    after: After = None,
    limit: Limit = 20,
) -> AdapterPlacePage:
    """Every version that requests may use, newest first, and where its pages are: on the device
    (or coming), in host memory, in Redis (shared), or in the object store alone."""
    pages = await answered(engine.pages())
    return await adapter_places(
        session, state.redis, pages, tier=tier, q=q, after=after, limit=limit
    )


@router.post("/adapters/{version_id}/pin", dependencies=_ACT)
async def pin_adapter(
    version_id: str, session: AdminSession, state: State, admin: CurrentAdmin, engine: ReadyEngine
) -> AdapterPin:
    """Pin a version: keep it on the device from now on, also across restarts, no matter what else
    needs memory. It is loaded if it is not there. `version_id` may be an adapter's id, which means
    its newest active version. 409, with the numbers, if no more can be pinned. Device memory is not
    billed while the version is pinned."""
    await pins.locked(session)
    version = await _version(session, version_id)
    is_new = not await pins.is_pinned(session, version.id)
    if is_new:
        pins.add(session, version, admin.actor)
        await session.flush()
    wanted = await pins.list_pins(session, state.secret)
    try:
        found = await pins.settled(engine, wanted, version.id)
    except InvalidRequestError as error:
        raise ConflictError(str(error), code="pin_refused") from error
    if found.state in ("refused", "failed"):
        others = [each.pin for each in wanted if each.version_id != version.id]
        await engine.set_pins(others if is_new else [each.pin for each in wanted])
        raise ConflictError(
            f"The adapter cannot be pinned: {found.reason}.", code=f"pin_{found.state}"
        )
    if is_new:
        await _note(session, state, admin.actor, "pin", version, pages=found.num_pages)
    return await _answer(state, version, pinned=True, state_now=found.state, size=found.num_pages)


@router.delete("/adapters/{version_id}/pin", dependencies=_ACT)
async def unpin_adapter(
    version_id: str, session: AdminSession, state: State, admin: CurrentAdmin, engine: ReadyEngine
) -> AdapterPin:
    """Unpin a version. It stays on the device until something else needs the memory. No effect if
    it is not pinned."""
    await pins.locked(session)
    version = await _version(session, version_id)
    if await pins.remove(session, version.id):
        wanted = await pins.list_pins(session, state.secret)
        await engine.set_pins([each.pin for each in wanted])
        await _note(session, state, admin.actor, "unpin", version)
    return await _answer(state, version, pinned=False, state_now=None, size=0)


@router.post("/adapters/{version_id}/evict", dependencies=_ACT)
async def evict_adapter(
    version_id: str, session: AdminSession, state: State, admin: CurrentAdmin, engine: ReadyEngine
) -> AdapterEviction:
    """Evict a version from the device now; the next request loads it again. 409 while it is pinned,
    or while requests run on it (with their number)."""
    version = await _version(session, version_id)
    group = await trust_group(session, version.tenant_id)
    namespace = tenant_namespace(state.secret, version.tenant_id, group)
    try:
        freed = await engine.evict_adapter(namespace, version.digest or "")
    except AdapterBusyError as error:
        code = "adapter_in_use" if error.requests else "adapter_pinned"
        message = str(error)
        raise ConflictError(f"{message[:1].upper()}{message[1:]}.", code=code) from error
    if freed:
        await _note(session, state, admin.actor, "evict", version, pages=freed)
    return AdapterEviction(id=version.id, pages=freed)


async def _version(session: AdminSession, version_id: str) -> AdapterVersionRow:
    found = await pins.servable(session, version_id)
    if found is None:
        raise NotFoundError(f"There is no usable adapter version {version_id!r}.")
    return found[0]


async def _namespace(state: AppState, tenant_id: str) -> str:
    async with state.db.admin_session() as session:
        tenant = await get_tenant(session, tenant_id)
    if tenant is None:
        raise BadRequestError(
            "for_tenant must be a tenant's id (tenant_...), and there is no tenant with the "
            f"id {tenant_id!r}. GET /admin/v1/tenants?q=NAME finds the id of a name.",
            param="for_tenant",
        )
    return tenant_namespace(state.secret, tenant.id, tenant.trust_group)


async def _note(
    session: AdminSession,
    state: AppState,
    actor: str,
    what: str,
    version: AdapterVersionRow,
    **after: int,
) -> None:
    await state.audit.append(
        session,
        actor=actor,
        action=f"adapter_version.{what}",
        target=version.id,
        tenant_id=version.tenant_id,
        after={"digest": version.digest, **after},
    )


async def _answer(
    state: AppState, version: AdapterVersionRow, *, pinned: bool, state_now: str | None, size: int
) -> AdapterPin:
    pages = await state.engine.pages()
    return AdapterPin(
        id=version.id,
        pinned=pinned,
        state="pinned" if state_now == "pinned" else "loading" if pinned else None,
        pages=size,
        pinned_pages=pages.pinned_pages,
        pinnable_pages=pages.pinnable_pages,
    )


def _sample(slot: int, kinds: list[int]) -> PageSample:
    free, live_kv, cached_kv, adapter = kinds
    return PageSample(at=slot, free=free, live_kv=live_kv, cached_kv=cached_kv, adapter=adapter)
