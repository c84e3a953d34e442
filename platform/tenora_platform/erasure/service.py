"""Deletes tenants and restores them: what the operator asks for. Erasing is the worker's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.canary.tables import CanaryRow
from tenora_platform.errors import ConflictError, NotFoundError
from tenora_platform.tenants.repository import get_tenant
from tenora_platform.tenants.tables import TenantRow


class Deletions:
    """Works inside one session; commits nothing itself."""

    def __init__(self, session: AsyncSession, *, audit: AuditLog, actor: str) -> None:
        self._session = session
        self._audit = audit
        self._actor = actor

    async def delete(self, tenant_id: str, grace: timedelta) -> TenantRow:
        """Suspended from now on, and erased after `grace`; one that is deleted already, after the
        new grace. Raises NotFoundError; ConflictError for one that has been erased, and for the
        canary's."""
        row = await self._row(tenant_id)
        if row.erased_at is not None:
            raise ConflictError("This tenant has been erased.", code="tenant_erased")
        if await self._session.scalar(select(CanaryRow).where(CanaryRow.tenant == tenant_id)):
            raise ConflictError("This is a tenant of the canary's.", code="tenant_in_use")
        now = datetime.now(UTC)
        row.status_before = row.status_before or row.status
        row.deleted_at = row.deleted_at or now
        row.erase_after = now + grace
        row.status, row.updated_at = "suspended", now
        await self._note("tenant.delete", row, erase_after=row.erase_after.isoformat())
        return row

    async def restore(self, tenant_id: str) -> TenantRow:
        """As it was before it was deleted. Raises NotFoundError; ConflictError where it was not,
        and once it is being erased."""
        row = await self._row(tenant_id)
        now = datetime.now(UTC)
        if row.deleted_at is None:
            raise ConflictError("This tenant has not been deleted.", code="tenant_not_deleted")
        is_due = row.erase_after is not None and row.erase_after <= now
        if row.erased_at is not None or is_due:
            raise ConflictError("This tenant's time to be restored is over.", code="tenant_erased")
        row.status = row.status_before or "suspended"
        row.deleted_at = row.erase_after = row.status_before = None
        row.updated_at = now
        await self._note("tenant.restore", row, status=row.status)
        return row

    async def _row(self, tenant_id: str) -> TenantRow:
        row = await get_tenant(self._session, tenant_id, lock=True)
        if row is None:
            raise NotFoundError(f"There is no tenant {tenant_id!r}.")
        return row

    async def _note(self, action: str, row: TenantRow, **after: object) -> None:
        await self._audit.append(
            self._session,
            actor=self._actor,
            action=action,
            target=row.id,
            tenant_id=row.id,
            after=after,
        )
