"""Would an upload be accepted, and what would it take? Answered by name, plan, config and header,
before the weights are sent. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

from tenora_engine.errors import AdapterLoadError
from tenora_platform.auth import TenantContext
from tenora_platform.errors import TooLargeError, UnavailableError
from tenora_platform.intake.check import CheckedAdapter
from tenora_platform.intake.checker import CheckLostError
from tenora_platform.intake.draft_layer import examine_draft_header
from tenora_platform.intake.report import Problem
from tenora_platform.probing.costs import storage_cost
from tenora_platform.probing.loads import predicted_loads
from tenora_platform.probing.schemas import Footprint
from tenora_platform.registry.incoming import ReceivedLayer, ReceivedWeights
from tenora_platform.registry.schemas import Preflight, PreflightModule, TierBytes
from tenora_platform.registry.service import Registry
from tenora_platform.state import AppState, answered


@dataclass(frozen=True)
class DraftHeader:
    """Of a draft layer that is to come beside the weights."""

    header: bytes  # the file's first bytes: its 8 bytes of length and its header
    bytes: int  # of the whole file


async def preflight(
    state: AppState,
    tenant: TenantContext,
    name: str,
    config: bytes,
    header: bytes,  # the file's first bytes: its 8 bytes of length and its header
    weights_bytes: int,
    draft_layer: DraftHeader | None = None,
) -> Preflight:
    """Needs an engine that has loaded. Raises what an upload would for the name, the plan and the
    server's own limit."""
    layer = None if draft_layer is None else ReceivedLayer(draft_layer.bytes, sha256="")
    weights = ReceivedWeights(weights_bytes, sha256="", draft_layer=layer)
    await Registry(state, tenant).check_room(name, weights)
    if weights_bytes > state.settings.max_upload:
        raise TooLargeError(
            f"The weights have {weights_bytes} bytes; this server accepts at most "
            f"{state.settings.max_upload}.",
            param="weights",
        )
    examined = await _examined(state, config, header, weights_bytes)
    report = examined.report
    if draft_layer is not None:
        file = BytesIO(draft_layer.header)
        report.problems += examine_draft_header(file, draft_layer.bytes, state.engine.model)
    found = Preflight(
        name=name,
        accepted=not report.problems,
        rank=examined.rank,
        target_modules=list(examined.target_modules),
        bytes=weights.all_bytes,
        validation=report,
    )
    if found.accepted:
        await _add_costs(state, tenant, found, examined)
    return found


async def _examined(
    state: AppState, config: bytes, header: bytes, weights_bytes: int
) -> CheckedAdapter:
    """Raises UnavailableError where nobody can say."""
    try:
        return await state.preflights.check_header(
            config, header, weights_bytes, state.engine.model, state.settings.max_rank
        )
    except (CheckLostError, OSError) as error:
        raise UnavailableError("Adapters cannot be checked right now; try again.") from error


async def _add_costs(
    state: AppState, tenant: TenantContext, found: Preflight, examined: CheckedAdapter
) -> None:
    ranks = examined.ranks
    found.modules = [_module(module, of_layers) for module, of_layers in ranks.items()]
    try:
        takes = await answered(state.engine.footprint(ranks))
    except AdapterLoadError as error:
        problem = Problem(field="adapter_config.r", code="page_too_small", message=str(error))
        found.accepted, found.validation.problems = False, [problem]
        return
    on_device = takes.pages * takes.page_bytes
    found.footprint = Footprint(pages=takes.pages, page_bytes=takes.page_bytes)
    found.sizes = [
        TierBytes(tier="device", bytes=on_device),
        TierBytes(tier="host", bytes=takes.host_bytes),
        TierBytes(tier="shared", bytes=takes.host_bytes),
        TierBytes(tier="store", bytes=found.bytes),
    ]
    found.loads = predicted_loads(await answered(state.engine.stats()))
    found.storage = await storage_cost(state, tenant, found.bytes)


def _module(module: str, of_layers: list[int]) -> PreflightModule:
    present = [rank for rank in of_layers if rank]
    return PreflightModule(
        module=module, layers=len(present), rank_min=min(present), rank_max=max(present)
    )
