"""Whom invoices are from and for: the operator's settings and each tenant's profile, changes
audited. What is final has a copy and knows nothing of changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.errors import BadRequestError
from tenora_platform.invoices import repository
from tenora_platform.invoices.currency import plain
from tenora_platform.invoices.schemas import BillingProfile, BillingSettings
from tenora_platform.invoices.tables import BillingProfileRow, BillingSettingsRow


def profile_view(tenant_id: str, row: BillingProfileRow | None) -> BillingProfile:
    if row is None:
        return BillingProfile(tenant_id=tenant_id)
    rate = None if row.tax_rate is None else plain(row.tax_rate)
    values = {**_values(row), "tax_rate": rate, "updated_at": row.updated_at}
    return BillingProfile(tenant_id=tenant_id, **values)


async def put_profile(
    session: AsyncSession, audit: AuditLog, actor: str, tenant_id: str, values: Mapping[str, Any]
) -> BillingProfile:
    """These fields of a tenant's profile. Of a tenant's session none of them may be tax."""
    before = await repository.profile(session, tenant_id, lock=True)
    told = None if before is None else _values(before)
    changes = {**values, "updated_at": datetime.now(UTC)}
    if "tax_since" in changes and changes["tax_since"] is None:
        changes["tax_since"] = _tax_since(before, values)
    statement = (
        insert(BillingProfileRow)
        .values(tenant_id=tenant_id, **changes)
        .on_conflict_do_update(index_elements=[BillingProfileRow.tenant_id], set_=changes)
    )
    await session.execute(statement)
    row = await session.get_one(BillingProfileRow, tenant_id, populate_existing=True)
    await audit.append(
        session,
        actor=actor,
        action="billing_profile.put",
        target=tenant_id,
        tenant_id=tenant_id,
        before=told,
        after=_values(row),
    )
    return profile_view(tenant_id, row)


def _tax_since(before: BillingProfileRow | None, values: Mapping[str, Any]) -> date:
    """The first day of what is set without one: today, unless it is as it was."""
    tax = values["tax_name"], values["tax_rate"]
    if before is not None and (before.tax_name, before.tax_rate) == tax:
        return before.tax_since
    return datetime.now(UTC).date()


def settings_view(row: BillingSettingsRow) -> BillingSettings:
    return BillingSettings.model_validate(row, from_attributes=True)


async def change_settings(
    session: AsyncSession, audit: AuditLog, actor: str, changes: Mapping[str, Any]
) -> BillingSettings:
    """Raises BadRequestError where invoices and credit notes would have the same numbers."""
    row = await session.get_one(BillingSettingsRow, 1, with_for_update={"key_share": True})
    before = settings_view(row).model_dump(exclude={"object", "updated_at"})
    for name, value in changes.items():
        setattr(row, name, value)
    if row.number_prefix == row.credit_note_prefix:
        raise BadRequestError(
            "Invoices and credit notes need different prefixes.", param="number_prefix"
        )
    row.updated_at = datetime.now(UTC)
    await session.flush()
    after = settings_view(row)
    await audit.append(
        session,
        actor=actor,
        action="billing_settings.update",
        target="billing_settings",
        before=before,
        after=after.model_dump(exclude={"object", "updated_at"}),
    )
    return after


def _values(row: BillingProfileRow) -> dict[str, Any]:
    names = ("name", "address", "tax_id", "email", "tax_name", "tax_rate")
    return {name: getattr(row, name) for name in names} | {"tax_since": f"{row.tax_since}"}
