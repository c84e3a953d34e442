"""What a plan lets a tenant store: bytes and names of adapters. Call it under the tenant's registry
lock where the answer must still hold at the commit."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import TenantContext
from tenora_platform.errors import QuotaExceededError, TooLargeError
from tenora_platform.registry import repository


async def check_storage(
    session: AsyncSession,
    tenant: TenantContext,
    more_bytes: int,
    *,
    param: str,
    besides: str | None = None,
) -> None:
    """Raises TooLargeError if the tenant may not store so much more. What open uploads were
    declared with counts as stored, and what was reserved (`besides`: but for this id)."""
    left = await storage_left(session, tenant, besides)
    if left is not None and more_bytes > left:
        raise storage_exceeded(tenant, left, more_bytes, param=param)


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes may come, and what is said to more."""

    bytes: int
    refusal: TooLargeError


async def storage_left(
    session: AsyncSession, tenant: TenantContext, besides: str | None = None
) -> int | None:
    """Bytes that the tenant may still store; None where the plan sets no limit."""
    most = tenant.plan.adapter_bytes
    if most is None:
        return None
    return max(0, most - await repository.stored_bytes(session, tenant.tenant_id, besides))


def storage_exceeded(
    tenant: TenantContext, left: int, more_bytes: int | None, *, param: str
) -> TooLargeError:
    """What is said of an upload of `more_bytes` (None: of a size nobody knows) beyond the plan."""
    plan, size = tenant.plan, "" if more_bytes is None else f", and this one needs {more_bytes}"
    return TooLargeError(
        f"The plan '{plan.name}' allows {plan.adapter_bytes} bytes of stored adapters. {left} "
        f"bytes are left (open uploads included){size}. Delete versions you do not need, or "
        "cancel uploads.",
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
            f"The plan '{plan.name}' allows {plan.adapters} adapters. Delete one, or upload "
            "this as a new version of an existing adapter.",
            param="name",
            code="adapter_limit_reached",
        )
