"""Queries of invoices. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    DateTime,
    Text,
    and_,
    any_,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.billing.terms import Customer, Stay
from tenora_platform.budgets.tables import CreditGrantRow
from tenora_platform.invoices.lines import USED, Billed
from tenora_platform.invoices.tables import (
    BillingProfileRow,
    BillingSettingsRow,
    InvoiceLineRow,
    InvoiceNumberRow,
    InvoicePaymentRow,
    InvoiceRow,
    InvoiceUsageRow,
    TenantTaxRow,
)
from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.tenants.plan_history import plan_histories
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.tables import UsageDayRow


@dataclass(frozen=True, slots=True)
class Filter:
    """None: any. Of a tenant's view drafts are no part."""

    tenant_id: str | None = None
    period: date | None = None
    status: str | None = None
    kind: str | None = None
    drafts: bool = True
    q: str | None = None  # a part of the number, of the tenant's name or of an id
    sort: str = "-created"  # also due, total (of one currency after the other), number


@dataclass(frozen=True, slots=True)
class Invoiced:
    """A tenant as a run sees it. `used`: there are sums of usage before the month's end."""

    customer: Customer
    name: str
    used: bool
    credited: bool  # there are grants of credit

    @property
    def id(self) -> str:
        return self.customer.id


async def settings(session: AsyncSession) -> BillingSettingsRow:
    return await session.get_one(BillingSettingsRow, 1)


async def profile(
    session: AsyncSession, tenant_id: str, *, lock: bool = False
) -> BillingProfileRow | None:
    return await session.get(
        BillingProfileRow, tenant_id, with_for_update={"key_share": True} if lock else None
    )


async def tax_on(session: AsyncSession, tenant_id: str, day: date) -> TenantTaxRow | None:
    """The tax in force on a day, as it was last recorded. Before the first of all, that one, if it
    was in force when it was recorded: then it was only late. None: no tax."""
    row = TenantTaxRow
    of_tenant = select(row).where(row.tenant_id == tenant_id)
    in_force = of_tenant.where(row.since <= day).order_by(row.no.desc()).limit(1)
    found: TenantTaxRow | None = await session.scalar(in_force)
    if found is None:
        first = await session.scalar(of_tenant.order_by(row.no).limit(1))
        found = first if first is not None and first.since <= first.noted_on else None
    return found


async def customers(
    session: AsyncSession, end: date, *, after: str, limit: int, only: str | None
) -> list[Invoiced]:
    """Tenants that there were before `end` or that used something, by id, after the one called
    `after`. The platform's own only where one is named."""
    used = _used_before(end)
    credited = select(literal(1)).where(CreditGrantRow.tenant_id == TenantRow.id).exists()
    query = (
        select(
            TenantRow.id,
            TenantRow.name,
            used,
            credited,
            TenantRow.created_at,
            TenantRow.deleted_at,
        )
        .where(TenantRow.id > after, *_are_customers(end, only))
        .order_by(TenantRow.id)
        .limit(limit)
    )
    found = (await session.execute(query)).all()
    plans = await plan_histories(session, [row[0] for row in found])
    return [
        Invoiced(Customer(tenant_id, plans[tenant_id], Stay(since, until)), name, used, credited)
        for tenant_id, name, used, credited, since, until in found
    ]


async def count_customers(session: AsyncSession, end: date, *, only: str | None) -> int:
    """How many `customers` there are."""
    query = select(func.count()).select_from(TenantRow).where(*_are_customers(end, only))
    return await session.scalar(query) or 0


def _are_customers(end: date, only: str | None) -> tuple[ColumnElement[bool], ...]:
    chosen = ~TenantRow.internal if only is None else TenantRow.id == only
    return chosen, or_(TenantRow.created_at < _midnight(end), _used_before(end))


def _used_before(end: date) -> ColumnElement[bool]:
    day = UsageDayRow
    return select(literal(1)).where(day.tenant_id == TenantRow.id, day.day < end).exists()


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


async def of_period(
    session: AsyncSession, tenant_id: str, period: date
) -> dict[str, list[InvoiceRow]]:
    """Its drafts and those that hold, by currency."""
    query = select(InvoiceRow).where(
        InvoiceRow.tenant_id == tenant_id,
        InvoiceRow.period == period,
        InvoiceRow.kind == "invoice",
        InvoiceRow.status.in_(("draft", "final")),
    )
    found: dict[str, list[InvoiceRow]] = {}
    for row in await session.scalars(query):
        found.setdefault(row.currency, []).append(row)
    return found


async def billed(session: AsyncSession, invoice: InvoiceRow) -> dict[date, Billed]:
    """By month, what the tenant's other invoices that hold have of it in this one's currency. Lines
    from before they said their month are of their invoice's."""
    line = InvoiceLineRow
    month = func.coalesce(line.month, InvoiceRow.period)
    kinds = (USED, ("included",), ("minimum",))
    query = (
        select(
            month,
            *(
                func.coalesce(func.sum(line.amount).filter(line.kind.in_(kind)), 0)
                for kind in kinds
            ),
        )
        .join(InvoiceRow, InvoiceRow.id == line.invoice_id)
        .where(
            InvoiceRow.tenant_id == invoice.tenant_id,
            InvoiceRow.currency == invoice.currency,
            InvoiceRow.kind == "invoice",
            InvoiceRow.status == "final",
            InvoiceRow.id != invoice.id,
        )
        .group_by(month)
    )
    return {of: Billed(*amounts) for of, *amounts in await session.execute(query)}


async def finals(
    session: AsyncSession, tenant_ids: Sequence[str], period: date
) -> dict[str, set[str]]:
    """The currencies in which a tenant has its invoice of the month."""
    query = select(InvoiceRow.tenant_id, InvoiceRow.currency).where(
        InvoiceRow.tenant_id == any_(literal(list(tenant_ids), ARRAY(Text))),
        InvoiceRow.period == period,
        InvoiceRow.kind == "invoice",
        InvoiceRow.status == "final",
    )
    found: dict[str, set[str]] = {}
    for tenant_id, currency in await session.execute(query):
        found.setdefault(tenant_id, set()).add(currency)
    return found


async def next_number(session: AsyncSession, series: str) -> int:
    """Locks the series until the transaction ends: ask for it last."""
    statement = (
        update(InvoiceNumberRow)
        .where(InvoiceNumberRow.series == series)
        .values(last=InvoiceNumberRow.last + 1)
        .returning(InvoiceNumberRow.last)
    )
    return int((await session.execute(statement)).scalar_one())


async def add_lines(session: AsyncSession, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        await session.execute(insert(InvoiceLineRow), list(rows))


async def clear_draft(session: AsyncSession, row: InvoiceRow) -> None:
    """All that hangs on it is gone; the draft itself is left."""
    for table in (InvoiceLineRow, InvoiceUsageRow):
        await session.execute(delete(table).where(table.invoice_id == row.id))


async def get(
    session: AsyncSession, invoice_id: str, *, tenant_id: str | None = None, lock: bool = False
) -> InvoiceRow | None:
    query = select(InvoiceRow).where(InvoiceRow.id == invoice_id)
    if tenant_id is not None:
        query = query.where(InvoiceRow.tenant_id == tenant_id, InvoiceRow.status != "draft")
    if lock:
        query = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    found: InvoiceRow | None = await session.scalar(query)
    return found


async def list_invoices(
    session: AsyncSession, chosen: Filter, *, after: str | None, limit: int
) -> list[InvoiceRow]:
    """In the order that was chosen; one more than `limit`."""
    query = select(InvoiceRow).where(
        *paging.having(
            chosen.q,
            InvoiceRow.number,
            InvoiceRow.buyer["tenant"].astext,
            InvoiceRow.id,
            InvoiceRow.tenant_id,
        )
    )
    for column, value in (
        (InvoiceRow.tenant_id, chosen.tenant_id),
        (InvoiceRow.period, chosen.period),
        (InvoiceRow.status, chosen.status),
        (InvoiceRow.kind, chosen.kind),
    ):
        if value is not None:
            query = query.where(column == value)
    if not chosen.drafts:
        query = query.where(InvoiceRow.status != "draft")
    order = _order(chosen.sort, after)
    return list(await session.scalars(paging.page(query, order, after=after, limit=limit)))


def _order(sort: str, after: str | None) -> paging.Order:
    by, descending = paging.split(sort)
    keys: dict[str, ColumnElement[Any]] = {
        # A number counts up within its series, so its length comes first.
        "number": func.row(func.coalesce(func.length(InvoiceRow.number), 0), InvoiceRow.number),
        "due": func.coalesce(InvoiceRow.due_at, literal("infinity", DateTime(timezone=True))),
        "total": func.row(InvoiceRow.currency, InvoiceRow.total),
    }
    if by == "created":  # ids are made in time's order, also that of a draft that is gone
        of_after = select(literal(after, Text)).scalar_subquery()
        return paging.Order(
            InvoiceRow.id.expression, InvoiceRow.id.expression, descending, of_after
        )
    of_after = select(keys[by]).where(InvoiceRow.id == after).scalar_subquery()
    return paging.Order(keys[by], InvoiceRow.id.expression, descending, of_after)


async def lines_of(
    session: AsyncSession, invoice_ids: Sequence[str]
) -> dict[str, list[InvoiceLineRow]]:
    """By invoice, in order."""
    query = (
        select(InvoiceLineRow)
        .where(InvoiceLineRow.invoice_id == any_(literal(list(invoice_ids), ARRAY(Text))))
        .order_by(InvoiceLineRow.invoice_id, InvoiceLineRow.no)
    )
    found: dict[str, list[InvoiceLineRow]] = {of: [] for of in invoice_ids}
    for row in await session.scalars(query):
        found[row.invoice_id].append(row)
    return found


async def notes_to(session: AsyncSession, invoice_id: str) -> list[InvoiceRow]:
    """The credit notes to an invoice, oldest first."""
    query = (
        select(InvoiceRow)
        .where(InvoiceRow.of_invoice == invoice_id, InvoiceRow.status == "final")
        .order_by(InvoiceRow.id)
    )
    return list(await session.scalars(query))


_REVERSAL = and_(
    LedgerTransactionRow.tenant_id == InvoicePaymentRow.tenant_id,
    LedgerTransactionRow.kind == "payment",
    LedgerTransactionRow.reference == InvoicePaymentRow.id + ":reversed",
)


async def payments_of(
    session: AsyncSession, invoice_id: str
) -> list[tuple[InvoicePaymentRow, datetime | None]]:
    """Oldest first, each with when it was reversed."""
    query = (
        select(InvoicePaymentRow, LedgerTransactionRow.created_at)
        .outerjoin(LedgerTransactionRow, _REVERSAL)
        .where(InvoicePaymentRow.invoice_id == invoice_id)
        .order_by(InvoicePaymentRow.id)
    )
    return [(payment, reversed_at) for payment, reversed_at in await session.execute(query)]


async def settled(
    session: AsyncSession, invoice_ids: Iterable[str]
) -> dict[str, tuple[Decimal, Decimal]]:
    """(paid and not reversed, credited by notes) of each invoice that has any of it."""
    ids = literal(list(invoice_ids), ARRAY(Text))
    paid = (
        select(InvoicePaymentRow.invoice_id, func.sum(InvoicePaymentRow.amount))
        .where(InvoicePaymentRow.invoice_id == any_(ids), ~exists().where(_REVERSAL))
        .group_by(InvoicePaymentRow.invoice_id)
    )
    credited = (
        select(InvoiceRow.of_invoice, func.sum(InvoiceRow.total))
        .where(InvoiceRow.of_invoice == any_(ids), InvoiceRow.status == "final")
        .group_by(InvoiceRow.of_invoice)
    )
    paid_of = {row[0]: row[1] for row in await session.execute(paid)}
    credited_of = {of: amount for of, amount in await session.execute(credited) if of}
    zero = Decimal(0)
    known = {*paid_of, *credited_of}
    return {of: (paid_of.get(of, zero), credited_of.get(of, zero)) for of in known}
