"""Versions whose weights produce logits that are no numbers: their reports say so, whoever found
it, a probe or a tenant's own request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.errors import SickWeightsError
from tenora_platform.intake.report import Problem, ValidationReport
from tenora_platform.registry.resolver import ResolvedModel
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.state import AppState

KNOWN_MAX = 10_000
"""Versions that a process remembers to have written of; further ones are written of by probes."""
_log = structlog.get_logger(__name__)


async def warn(session: AsyncSession, version_id: str) -> None:
    """The version's report has the warning from now on: weights never change."""
    row = await session.get_one(AdapterVersionRow, version_id, with_for_update={"key_share": True})
    report = ValidationReport.model_validate(row.report or {"problems": []})
    if any(each.code == SickWeightsError.code for each in report.warnings):
        return
    report.warnings.append(
        Problem(
            field="weights",
            code=SickWeightsError.code,
            message="with this version the model's logits were NaN or infinite, so that no token "
            "could be chosen: such a request ends with an error and is not charged. Training that "
            "diverged leaves such weights",
        )
    )
    row.report = report.model_dump(mode="json")


@contextlib.asynccontextmanager
async def told(state: AppState, resolved: ResolvedModel) -> AsyncGenerator[None]:
    """Around a request of the version: its report is told if it ends so, once by each process."""
    try:
        yield
    except SickWeightsError:
        adapter, known = resolved.adapter, state.sick_versions
        if adapter is not None and adapter.version_id not in known and len(known) < KNOWN_MAX:
            known.add(adapter.version_id)
            await _tell(state, adapter.version_id)
        raise


async def _tell(state: AppState, version_id: str) -> None:
    try:
        async with state.db.admin_session() as session:
            await warn(session, version_id)
    except SQLAlchemyError as error:  # no request fails by it
        state.sick_versions.discard(version_id)
        _log.warning("report not stored", version=version_id, reason=type(error).__name__)
