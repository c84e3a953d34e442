"""Ends a job before it is through, for somebody who may have started it."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.jobs import repository
from tenora_platform.jobs.tables import JobRow


async def cancel(session: AsyncSession, audit: AuditLog, row: JobRow, actor: str) -> None:
    """Let it end with the step that is under way, if any; once more is no error. Raises
    ConflictError where it has ended otherwise."""
    if await repository.cancel(session, row.id, actor):
        await audit.append(session, actor=actor, action=f"{row.kind}.cancel", target=row.id)
