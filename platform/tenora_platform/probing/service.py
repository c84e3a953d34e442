"""What a tenant may see of probes, and what it may have asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import TenantContext
from tenora_platform.errors import NotFoundError
from tenora_platform.intake.report import ValidationReport
from tenora_platform.probing import repository
from tenora_platform.probing.costs import storage_cost
from tenora_platform.probing.prompts import BUILT_IN
from tenora_platform.probing.schemas import (
    AdapterReport,
    Findings,
    ProbePromptsView,
)
from tenora_platform.probing.tables import AdapterProbeRow
from tenora_platform.registry import repository as registry
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.state import AppState

ASKED_AGAIN_AFTER = timedelta(minutes=10)
"""New prompts are asked at once, and then again no sooner than this: the platform pays for it."""


class Probes:
    """The probes of one tenant's adapters."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant

    async def report(self, name: str, number: int) -> AdapterReport:
        """Raises NotFoundError."""
        async with self._session() as session:
            adapter = await self._adapter(session, name)
            version = await _version(session, adapter, number)
            probe = await session.get(AdapterProbeRow, version.id)
        found = None if version.report is None else ValidationReport(**version.report)
        asks = self._state.settings.probe_adapters and version.state == "active"
        return AdapterReport(
            name=name,
            version=number,
            state=version.state,
            probe=_shown(probe, asks=asks),
            probe_error=probe.error if probe else None,
            probed_at=probe.probed_at if probe else None,
            warnings=found.warnings if found else [],
            picture=found.facts.picture if found and found.facts else None,
            findings=Findings(**probe.findings) if probe and probe.findings else None,
            storage=await storage_cost(
                self._state, self._tenant, version.bytes, version.adapter_id
            ),
        )

    async def prompts(self, name: str) -> ProbePromptsView:
        """Raises NotFoundError."""
        async with self._session() as session:
            adapter = await self._adapter(session, name)
            own = await repository.prompts_of(session, adapter.id)
        return _view(name, own)

    async def put_prompts(self, name: str, prompts: Sequence[str]) -> ProbePromptsView:
        """From now on; the newest active version is asked again. Raises NotFoundError."""
        now = datetime.now(UTC)
        async with self._session() as session:
            adapter = await self._adapter(session, name)
            before = await repository.prompts_of(session, adapter.id)
            await repository.put_prompts(session, adapter, prompts)
            await repository.ask_again(session, adapter.id, now, now - ASKED_AGAIN_AFTER)
            await self._state.audit.append(
                session,
                actor=self._tenant.key_id,
                action="adapter_probe_prompts.put",
                target=adapter.id,
                tenant_id=self._tenant.tenant_id,
                before={"prompts": len(before or ())},
                after={"prompts": len(prompts)},
                details={"name": name},
            )
        return _view(name, list(prompts))

    async def _adapter(self, session: AsyncSession, name: str) -> AdapterRow:
        row = await registry.adapter_by_name(session, self._tenant.tenant_id, name)
        if row is None:
            raise NotFoundError(f"There is no adapter named {name[:80]!r}.", param="name")
        return row

    def _session(self) -> AbstractAsyncContextManager[AsyncSession]:
        return self._state.db.tenant_session(self._tenant.tenant_id)


def _shown(
    probe: AdapterProbeRow | None, *, asks: bool
) -> Literal["waiting", "done", "failed", "off"]:
    """Of what was never asked: whether anybody will."""
    if probe is None or not (probe.attempts or probe.probed_at or probe.state == "failed"):
        return "waiting" if asks else "off"
    return cast("Literal['waiting', 'done', 'failed']", probe.state)


async def _version(session: AsyncSession, adapter: AdapterRow, number: int) -> AdapterVersionRow:
    row = None
    if 0 <= number < 2**31:
        row = await registry.version_of(session, adapter.id, number)
    if row is None:
        raise NotFoundError(f"{adapter.name} has no version {number}.", param="version")
    return row


def _view(name: str, own: list[str] | None) -> ProbePromptsView:
    if own:
        return ProbePromptsView(name=name, source="tenant", prompts=own)
    return ProbePromptsView(name=name, source="built_in", prompts=list(BUILT_IN))
