"""Would an upload be accepted? Answered by name, plan, config and header, before the weights are
sent. Changes nothing."""

from __future__ import annotations

import asyncio
from io import BytesIO

from tenora_platform.auth import TenantContext
from tenora_platform.intake.check import examine_header
from tenora_platform.registry.incoming import ReceivedWeights
from tenora_platform.registry.schemas import Preflight
from tenora_platform.registry.service import Registry
from tenora_platform.state import AppState


async def preflight(
    state: AppState,
    tenant: TenantContext,
    name: str,
    config: bytes,
    header: bytes,  # the file's first bytes: its 8 bytes of length and its header
    weights_bytes: int,
) -> Preflight:
    """Needs an engine that has loaded. Raises what an upload would for the name and the plan."""
    await Registry(state, tenant).check_room(name, ReceivedWeights(weights_bytes, sha256=""))
    examined = await asyncio.to_thread(
        examine_header,
        config,
        BytesIO(header),
        weights_bytes,
        state.engine.model,
        state.settings.max_rank,
    )
    return Preflight(
        name=name,
        accepted=not examined.problems,
        rank=examined.rank,
        target_modules=list(examined.target_modules),
        bytes=weights_bytes,
        validation=examined.report(),
    )
