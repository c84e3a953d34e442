"""HTTP routes of the ledger: a tenant reads its own books, the operator anybody's. Nobody posts
here, but for reversals by hand."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import CurrentAdmin, TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import NotFoundError
from tenora_platform.ledger import due, repository
from tenora_platform.ledger.repository import Filter
from tenora_platform.ledger.reversal import reverse_by_hand
from tenora_platform.ledger.schemas import (
    LedgerBalance,
    LedgerBalances,
    LedgerPage,
    LedgerTransaction,
    ReversalBody,
    TenantAccount,
    TenantAccounts,
)
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.paging import Asked
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants.repository import get_tenant
from tenora_platform.usage.service import money

router = APIRouter(tags=["ledger"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]
AccountName = Literal[
    "unbilled", "receivable", "cash", "tax", "rounding", "promotion",
    "credit:granted", "credit:bought", "credit:lapsed",
]  # fmt: skip
_READERS = [Depends(require_role(*MONEY_READERS))]


async def chosen(
    kind: Annotated[
        str | None, Query(description="Only transactions of this kind, such as usage")
    ] = None,
    start: Annotated[
        date | None, Query(description="Only transactions of this day (UTC) or later")
    ] = None,
    end: Annotated[
        date | None, Query(description="Only transactions before this day (UTC)")
    ] = None,
) -> Filter:
    return Filter(kind, start, end)


Chosen = Annotated[Filter, Depends(chosen)]


@router.get("/v1/ledger")
async def list_ledger(
    state: State, tenant: UsageTenant, chosen: Chosen, after: After = None, limit: Limit = 20
) -> LedgerPage:
    """List the tenant's ledger: usage, credit, invoices and payments, last posted first."""
    async with state.db.tenant_session(tenant.tenant_id) as session:
        return await _page(session, tenant.tenant_id, chosen, after, limit)


@router.get("/v1/balances")
async def list_own_balances(state: State, tenant: UsageTenant) -> LedgerBalances:
    """Get the balance of each account of the tenant's ledger."""
    async with state.db.tenant_session(tenant.tenant_id) as session:
        return await _balances(session, tenant.tenant_id)


@router.get("/admin/v1/tenants/{tenant_id}/ledger", dependencies=_READERS)
async def list_tenant_ledger(
    tenant_id: str, session: AdminSession, chosen: Chosen, after: After = None, limit: Limit = 20
) -> LedgerPage:
    """List a tenant's ledger, last posted first."""
    await _demand_tenant(session, tenant_id)
    return await _page(session, tenant_id, chosen, after, limit)


@router.get("/admin/v1/tenants/{tenant_id}/balances", dependencies=_READERS)
async def list_balances(tenant_id: str, session: AdminSession) -> LedgerBalances:
    """Get the balance of each of a tenant's accounts."""
    await _demand_tenant(session, tenant_id)
    return await _balances(session, tenant_id)


@router.get("/admin/v1/ledger/accounts", dependencies=_READERS)
async def list_accounts(
    session: AdminSession,
    account: Annotated[
        AccountName,
        Query(description="The account's name; `unbilled` is usage that is on no invoice yet"),
    ],
    q: Asked = None,
    sort: Annotated[
        Literal["balance", "-balance"],
        Query(description="Sort order within each currency; '-' in front means largest first"),
    ] = "-balance",
    after: After = None,
    limit: Limit = 20,
) -> TenantAccounts:
    """List the balances of one account over all tenants, without those at 0: what is not invoiced
    yet, what is owed, what is left of credit."""
    chosen = repository.Accounts(account, q, sort)
    found = await repository.page_of_accounts(session, chosen, after=after, limit=limit)
    totals = await repository.totals_of_accounts(session, chosen)
    return TenantAccounts.of(
        [TenantAccount.of(*each) for each in found],
        limit,
        totals={currency: money(amount) for currency, amount in totals.items()},
    )


@router.post(
    "/admin/v1/ledger/transactions/{transaction_id}/reverse",
    dependencies=[Depends(require_role("billing"))],
)
async def reverse_transaction(
    transaction_id: str,
    body: ReversalBody,
    session: AdminSession,
    state: State,
    admin: CurrentAdmin,
) -> LedgerTransaction:
    """Reverse a payment that was recorded by mistake, by posting its opposite; its invoice is open
    again. Repeating the call returns the same reversal. 409 `not_reversible` for every other kind,
    with what to do instead."""
    row = await reverse_by_hand(
        session, state.ledger, state.audit, transaction_id, reason=body.reason, actor=admin.actor
    )
    lines = await repository.lines_of(session, [row.id])
    return LedgerTransaction.of(row, lines[row.id])


async def _demand_tenant(session: AsyncSession, tenant_id: str) -> None:
    if await get_tenant(session, tenant_id) is None:
        raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")


async def _balances(session: AsyncSession, tenant_id: str) -> LedgerBalances:
    found = await repository.balances(session, tenant_id)
    return LedgerBalances(
        data=[LedgerBalance.of(account, balance) for account, balance in found],
        days_due=await due.days_of(session, tenant_id),
    )


async def _page(
    session: AsyncSession, tenant_id: str, chosen: Filter, after: str | None, limit: int
) -> LedgerPage:
    rows = await repository.list_transactions(session, tenant_id, chosen, after=after, limit=limit)
    lines = await repository.lines_of(session, [row.id for row in rows])
    return LedgerPage.of([LedgerTransaction.of(row, lines.get(row.id, ())) for row in rows], limit)
