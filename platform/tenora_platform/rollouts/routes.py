"""HTTP routes of aliases: their targets, history and way back, staged roll-outs, shadow traffic."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from tenora_platform.auth import TenantContext
from tenora_platform.edge import EdgeRoute
from tenora_platform.registry.admission import adapters_tenant
from tenora_platform.registry.schemas import Alias
from tenora_platform.rollouts.aliases import Aliases
from tenora_platform.rollouts.schemas import (
    AliasHistory,
    AliasList,
    AliasUpdate,
    Because,
    Rollout,
    RolloutCreate,
    ShadowReport,
)
from tenora_platform.rollouts.service import Rollouts
from tenora_platform.rollouts.shadows import Shadows
from tenora_platform.schemas import After, Deleted, Limit
from tenora_platform.state import State

router = APIRouter(tags=["adapters"], route_class=EdgeRoute)
AdapterTenant = Annotated[TenantContext, Depends(adapters_tenant)]

_ALIAS = "/v1/adapters/{name}/aliases/{alias}"


@router.get("/v1/adapters/{name}/aliases")
async def list_adapter_aliases(name: str, state: State, tenant: AdapterTenant) -> AliasList:
    return AliasList(data=await Aliases(state, tenant).all(name))


@router.put(_ALIAS)
async def put_adapter_alias(
    name: str, alias: str, body: AliasUpdate, state: State, tenant: AdapterTenant
) -> Alias:
    """Point `name@alias` at one or several versions; the plain `name` means the alias `prod`. With
    several targets, each `user` (or `prompt_cache_key`) stays with one version, and as few of them
    as possible move when the weights change."""
    return await Aliases(state, tenant).put(name, alias, body)


@router.delete(_ALIAS)
async def delete_adapter_alias(
    name: str, alias: str, state: State, tenant: AdapterTenant
) -> Deleted:
    """Delete an alias. Its versions stay; a rollout of it ends."""
    await Aliases(state, tenant).delete(name, alias)
    return Deleted(id=f"{name}@{alias}", object="adapter_alias")


@router.get(_ALIAS + "/history")
async def get_adapter_alias_history(
    name: str,
    alias: str,
    state: State,
    tenant: AdapterTenant,
    limit: Limit = 20,
    after: After = None,
) -> AliasHistory:
    """List every change of an alias, newest first: old and new targets, by whom, when and why."""
    return await Aliases(state, tenant).history(name, alias, after=after, limit=limit)


@router.post(_ALIAS + "/rollback")
async def roll_back_adapter_alias(
    name: str, alias: str, state: State, tenant: AdapterTenant, body: Because | None = None
) -> Alias:
    """Back to the targets before the last change of them, at once. Of a roll-out: to those before
    it began; it ends if it runs. Of `prod` where nobody has set it yet: to the active version
    before the newest."""
    return await Aliases(state, tenant).rollback(name, alias, body.reason if body else None)


@router.post(_ALIAS + "/rollout", status_code=201)
async def begin_adapter_rollout(
    name: str, alias: str, body: RolloutCreate, state: State, tenant: AdapterTenant
) -> Rollout:
    """Start a staged rollout of a version. It advances automatically, and rolls back within seconds
    to the earlier targets if the version does worse than `guard` allows."""
    return await Rollouts(state, tenant).begin(name, alias, body)


@router.get(_ALIAS + "/rollout")
async def get_adapter_rollout(
    name: str, alias: str, state: State, tenant: AdapterTenant
) -> Rollout:
    """Get the running rollout, else the last one."""
    return await Rollouts(state, tenant).get(name, alias)


@router.post(_ALIAS + "/rollout/cancel")
async def cancel_adapter_rollout(
    name: str, alias: str, state: State, tenant: AdapterTenant, body: Because | None = None
) -> Rollout:
    """Cancel the running rollout; all requests go to the earlier targets again."""
    return await Rollouts(state, tenant).cancel(name, alias, body.reason if body else None)


@router.get(_ALIAS + "/shadow")
async def get_adapter_shadow(
    name: str,
    alias: str,
    state: State,
    tenant: AdapterTenant,
    limit: Limit = 20,
    after: After = None,
) -> ShadowReport:
    """What the shadow's version answered beside what was sent; `PUT` of the alias sets it."""
    return await Shadows(state, tenant).report(name, alias, after=after, limit=limit)
