"""Gives credit: the grant, its posting and what it makes of the tenant, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.currencies import WITHOUT_PRICES, charged_in
from tenora_platform.budgets.tables import CreditGrantRow, GrantKind
from tenora_platform.errors import BadRequestError, NotFoundError
from tenora_platform.ids import new_id
from tenora_platform.ledger.credits import post_grant
from tenora_platform.ledger.service import Ledger, lock_money
from tenora_platform.tenants.repository import get_tenant, require_not_erased


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What is to be given. `currency` None: the first in which the tenant is charged."""

    amount: Decimal
    kind: GrantKind = "granted"
    currency: str | None = None
    expires_at: datetime | None = None
    note: str | None = None


async def grant_credit(
    session: AsyncSession,
    ledger: Ledger,
    tenant_id: str,
    grant: Grant,
    *,
    now: datetime | None = None,
) -> CreditGrantRow:
    """From `now` on the tenant spends credit only. Raises NotFoundError; BadRequestError for one
    that has expired already; ConflictError for a tenant that was erased."""
    now = now or datetime.now(UTC)
    await lock_money(session, tenant_id)
    tenant = await get_tenant(session, tenant_id, lock=True)
    if tenant is None:
        raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")
    await require_not_erased(session, tenant_id)
    if grant.expires_at is not None and grant.expires_at <= now:
        raise BadRequestError("expires_at must be in the future.", param="expires_at")
    tenant.prepaid = True
    usual = next(iter(await charged_in(session, tenant_id, tenant.plan, now)), WITHOUT_PRICES)
    row = CreditGrantRow(
        id=new_id("credit"),
        tenant_id=tenant_id,
        amount=grant.amount,
        kind=grant.kind,
        currency=grant.currency or usual,
        expires_at=grant.expires_at,
        note=grant.note,
        created_at=now,
    )
    session.add(row)
    await session.flush()
    await session.refresh(row)
    await post_grant(session, ledger, row)
    return row
