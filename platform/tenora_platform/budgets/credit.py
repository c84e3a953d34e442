"""Prepaid credit as a budget: what has been granted and has not lapsed, spent since the first
grant. The grant that expires first is spent first. Works in sessions; no Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.budgets import repository
from tenora_platform.budgets.tables import CreditGrantRow
from tenora_platform.errors import BadRequestError, NotFoundError
from tenora_platform.ids import new_id
from tenora_platform.tenants.repository import get_tenant


@dataclass(frozen=True, slots=True)
class Credit:
    """`granted` less what has lapsed is the cap of what is spent from `since` on; it holds until
    `until`, when the next grant expires (None: none will)."""

    cap: Decimal
    since: datetime
    until: datetime | None


def credit_of(grants: Sequence[CreditGrantRow], now: datetime) -> Credit | None:
    """None where a grant has expired and nobody has said yet what lapsed of it (`close_expired`).
    Without grants there is nothing to spend."""
    if any(_is_open(grant, now) for grant in grants):
        return None
    ends = [each.expires_at for each in grants if each.expires_at and each.lapsed is None]
    return Credit(
        cap=exact_sum(grant.amount - (grant.lapsed or 0) for grant in grants),
        since=min((grant.created_at for grant in grants), default=now),
        until=min(ends, default=None),
    )


def _is_open(grant: CreditGrantRow, now: datetime) -> bool:
    return grant.lapsed is None and grant.expires_at is not None and grant.expires_at <= now


async def close_expired(session: AsyncSession, tenant_id: str, now: datetime) -> None:
    """Write down what lapsed of each grant that has expired: what had not been spent by then, those
    that expired before it first. A session of the operator's."""
    grants = await repository.grants(session, tenant_id, lock=True)
    since = min((grant.created_at for grant in grants), default=now)
    used = Decimal(0)  # of those that expired before
    for grant in sorted(
        grants, key=lambda each: each.expires_at or datetime.max.replace(tzinfo=UTC)
    ):
        if grant.expires_at is None or grant.expires_at > now:
            break
        if grant.lapsed is None:
            spent = await repository.amount_spent(session, tenant_id, since, grant.expires_at)
            grant.lapsed = grant.amount - min(max(spent - used, Decimal(0)), grant.amount)
        used += grant.amount - grant.lapsed


async def grant_credit(
    session: AsyncSession,
    tenant_id: str,
    *,
    amount: Decimal,
    expires_at: datetime | None,
    note: str | None,
) -> CreditGrantRow:
    """From now on the tenant spends credit only. Raises NotFoundError; BadRequestError for one that
    has expired already."""
    tenant = await get_tenant(session, tenant_id, lock=True)
    if tenant is None:
        raise NotFoundError(f"There is no tenant {tenant_id!r}.")
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise BadRequestError("expires_at lies in the past.", param="expires_at")
    tenant.prepaid = True
    grant = CreditGrantRow(
        id=new_id("credit"), tenant_id=tenant_id, amount=amount, expires_at=expires_at, note=note
    )
    session.add(grant)
    await session.flush()
    await session.refresh(grant)
    return grant
