"""HTTP route of imports from where the operator allows them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from tenora_platform.auth import TenantContext
from tenora_platform.edge import EdgeRoute
from tenora_platform.registry.admission import adapters_tenant
from tenora_platform.registry.importing import import_adapter
from tenora_platform.registry.schemas import AdapterImport, AdapterVersion
from tenora_platform.state import State

router = APIRouter(tags=["adapters"], route_class=EdgeRoute)


@router.post("/v1/adapters/import", status_code=202)
async def post_import(
    body: AdapterImport, state: State, tenant: Annotated[TenantContext, Depends(adapters_tenant)]
) -> AdapterVersion:
    """Import the adapter in a folder of an object store as the next version of `name`. The server
    reads it itself, and only below the prefixes that the operator allows. It is checked like an
    upload."""
    return await import_adapter(state, tenant, body)
