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
    """Get the report of a version: its effect (answers beside the base model's, and how far their
    distributions are apart), rank and norms by layer, memory, load times, and the monthly cost of
    storing it."""
    return await Probes(state, tenant).report(name, version)


@router.get("/v1/adapters/{name}/probe_prompts")
async def get_probe_prompts(name: str, state: State, tenant: AdapterTenant) -> ProbePromptsView:
    """Get the prompts that the adapter's versions are probed with."""
    return await Probes(state, tenant).prompts(name)


@router.put("/v1/adapters/{name}/probe_prompts")
async def put_probe_prompts(
    name: str, body: ProbePrompts, state: State, tenant: AdapterTenant
) -> ProbePromptsView:
    """Set up to 16 probe prompts of your own, sent as a user's message; an empty list restores the
    default ones. The newest active version is probed again, at most every ten minutes."""
    return await Probes(state, tenant).put_prompts(name, body.prompts)
