"""The monthly budget of a tenant's whole account: shown, set and removed, each change
audited. Telling of it is `alerts`'; refusing is the other budgets'."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.billing.currencies import WITHOUT_PRICES, charged_in
from tenora_platform.budgets.accounts import month_start, next_month
from tenora_platform.budgets.alerts import ALERT, Standing, standings, tell
from tenora_platform.budgets.news import SPENT, of_period
from tenora_platform.budgets.repository import amounts_spent
from tenora_platform.budgets.schemas import AccountBudget, AccountBudgetBody, ThresholdAlert
from tenora_platform.budgets.tables import AccountBudgetRow
from tenora_platform.errors import BadRequestError
from tenora_platform.events.tables import EventRow
from tenora_platform.tenants.repository import get_tenant
from tenora_platform.usage.service import money


async def view(session: AsyncSession, tenant_id: str) -> AccountBudget:
    """As it stands now."""
    now = datetime.now(UTC)
    month = month_start(now)
    found = await standings(session, month, [tenant_id])
    currencies, usual = await _currencies(session, tenant_id, now)
    shown = AccountBudget(
        tenant_id=tenant_id,
        currency=usual,
        currencies=currencies,
        period=f"{month:%Y-%m}",
        resets_at=next_month(month),
    )
    for standing in found:
        row = standing.budget
        shown.amount = money(row.amount)
        shown.currency = row.currency
        shown.hard = row.hard
        shown.binds = row.hard and (not currencies or row.currency in currencies)
        shown.thresholds = sorted(row.thresholds)
        shown.spent = money(standing.spent)
        shown.alerts = await _alerts(session, standing)
        shown.updated_at = row.updated_at
    return shown


async def put(
    session: AsyncSession, audit: AuditLog, actor: str, tenant_id: str, body: AccountBudgetBody
) -> AccountBudget:
    """Set it, and tell of what is reached already. Raises BadRequestError for a currency in which
    the tenant is not charged, and for a hard budget where it is charged in several."""
    now = datetime.now(UTC)
    currencies, usual = await _currencies(session, tenant_id, now)
    currency = body.currency or usual
    if currencies and currency not in currencies:
        raise BadRequestError(
            f"Your prices are in {' and '.join(currencies)}; a budget in {currency} would never "
            "be reached.",
            param="currency",
            code="invalid_value",
        )
    if body.hard and len(currencies) > 1:
        raise BadRequestError(
            f"Your prices are in {' and '.join(currencies)}. A budget that refuses requests needs "
            "prices in one currency; set hard to false to get alerts only.",
            param="hard",
            code="several_currencies",
        )
    spent = await amounts_spent(session, tenant_id, month_start(now), now)
    others = sorted(each for each, amount in spent.items() if amount and each != currency)
    if body.hard and others:
        raise BadRequestError(
            f"You have used something in {' and '.join(others)} this month. A budget that refuses "
            f"requests can be set in {currency} from next month on; until then set hard to false "
            "to get alerts only.",
            param="hard",
            code="several_currencies",
        )
    before = await session.get(AccountBudgetRow, tenant_id, with_for_update={"key_share": True})
    told = None if before is None else _told(before)
    values = {
        "amount": body.amount,
        "currency": currency,
        "hard": body.hard,
        "thresholds": sorted(body.thresholds),
        "updated_at": now,
    }
    statement = insert(AccountBudgetRow).values(tenant_id=tenant_id, **values)
    await session.execute(
        statement.on_conflict_do_update(index_elements=[AccountBudgetRow.tenant_id], set_=values)
    )
    row = await session.get_one(AccountBudgetRow, tenant_id, populate_existing=True)
    await _note(session, audit, actor, row.tenant_id, "put", told, _told(row))
    for standing in await standings(session, month_start(now), [tenant_id]):
        await tell(session, standing)
    return await view(session, tenant_id)


async def drop(session: AsyncSession, audit: AuditLog, actor: str, tenant_id: str) -> None:
    """Take it back, if there is one."""
    row = await session.get(AccountBudgetRow, tenant_id, with_for_update={"key_share": True})
    if row is not None:
        await session.delete(row)
        await _note(session, audit, actor, tenant_id, "delete", _told(row), None)


async def _currencies(
    session: AsyncSession, tenant_id: str, now: datetime
) -> tuple[list[str], str]:
    """Those of its prices in force, and the tenant's own."""
    tenant = await get_tenant(session, tenant_id)
    plan = "" if tenant is None else tenant.plan
    found = await charged_in(session, tenant_id, plan, now)
    return sorted(found), next(iter(found), WITHOUT_PRICES)


async def _alerts(session: AsyncSession, standing: Standing) -> list[ThresholdAlert]:
    """Those of this month that were told, the lowest first: each since the first event that told of
    as much spending."""
    budget = standing.budget
    of_month = of_period(budget.tenant_id, ALERT, standing.period, budget.currency)
    query = select(func.min(EventRow.created_at)).where(*of_month)
    found = []
    for threshold in sorted(budget.thresholds):
        at = await session.scalar(query.where(standing.level(threshold) <= SPENT))
        if at is not None:
            found.append(ThresholdAlert(threshold=threshold, reached_at=at))
    return found


async def _note(
    session: AsyncSession,
    audit: AuditLog,
    actor: str,
    tenant_id: str,
    what: str,
    before: dict[str, object] | None,
    after: dict[str, object] | None,
) -> None:
    await audit.append(
        session,
        actor=actor,
        action=f"account_budget.{what}",
        target=tenant_id,
        tenant_id=tenant_id,
        before=before,
        after=after,
    )


def _told(row: AccountBudgetRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in ("amount", "currency", "hard", "thresholds")}
