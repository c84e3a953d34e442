"""What a plan lets a tenant store: bytes and names of adapters. Call it under the tenant's registry
lock where the answer must still hold at the commit."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import TenantContext
from tenora_platform.errors import QuotaExceededError, TooLargeError
from tenora_platform.registry import repository


async def check_storage(
    session: AsyncSession, tenant: TenantContext, more_bytes: int, *, param: str
) -> None:
    """Raises TooLargeError if the tenant may not store so much more. What open uploads were
    declared with counts as stored."""
    plan = tenant.plan
    if plan.adapter_bytes is None:
        return
    stored = await repository.stored_bytes(session, tenant.tenant_id)
    if stored + more_bytes > plan.adapter_bytes:
        raise TooLargeError(
            f"The plan '{plan.name}' stores {plan.adapter_bytes} bytes of adapters; {stored} are "
            f"used, open uploads included, and this one has {more_bytes}. Delete versions you do "
            "not need, or cancel uploads.",
            param=param,
            code="adapter_storage_exceeded",
        )


async def check_names(session: AsyncSession, tenant: TenantContext, name: str) -> None:
    """Raises QuotaExceededError if `name` is new and the plan has no more adapters."""
    plan = tenant.plan
    if plan.adapters is None:
        return
    known = await repository.adapter_by_name(session, tenant.tenant_id, name) is not None
    if not known and await repository.adapter_count(session, tenant.tenant_id) >= plan.adapters:
        raise QuotaExceededError(
            f"The plan '{plan.name}' allows {plan.adapters} adapters. Delete one, or add a "
            "version to one that exists.",
            param="name",
            code="adapter_limit_reached",
        )
