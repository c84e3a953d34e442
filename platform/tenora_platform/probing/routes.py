"""HTTP routes of an adapter version's report and of the prompts that it is probed with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from tenora_platform.auth import TenantContext, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.probing.schemas import AdapterReport, ProbePrompts, ProbePromptsView
from tenora_platform.probing.service import Probes
from tenora_platform.state import State

router = APIRouter(tags=["adapters"], route_class=EdgeRoute)
AdapterTenant = Annotated[TenantContext, Depends(require_scope("adapters"))]


@router.get("/v1/adapters/{name}/versions/{version}/report")
async def get_adapter_report(
    name: str, version: int, state: State, tenant: AdapterTenant
) -> AdapterReport:
    """Does it do anything? Rank and norms by layer, answers beside the base model's, how far the
    two are apart, memory, load times, and what a month of storing it costs."""
    return await Probes(state, tenant).report(name, version)


@router.get("/v1/adapters/{name}/probe_prompts")
async def get_probe_prompts(name: str, state: State, tenant: AdapterTenant) -> ProbePromptsView:
    """What the adapter's versions are asked for their report."""
    return await Probes(state, tenant).prompts(name)


@router.put("/v1/adapters/{name}/probe_prompts")
async def put_probe_prompts(
    name: str, body: ProbePrompts, state: State, tenant: AdapterTenant
) -> ProbePromptsView:
    """Up to 16 prompts of your own, asked as a user's message; none: those of every adapter. The
    newest active version is asked again, at most every ten minutes."""
    return await Probes(state, tenant).put_prompts(name, body.prompts)
