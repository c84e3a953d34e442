"""What is behind a line of usage: its sums by day, adapter or key as the invoice took them, and the
requests they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.errors import BadRequestError, NotFoundError
from tenora_platform.invoices.currency import plain
from tenora_platform.invoices.lines import USED
from tenora_platform.invoices.parts import Part
from tenora_platform.invoices.requests import Behind, requests_of
from tenora_platform.invoices.schemas import InvoiceLine, line_view
from tenora_platform.invoices.tables import InvoiceLineRow, InvoiceRow
from tenora_platform.usage.sums import AMOUNTS

Group = Literal["day", "adapter", "api_key", "request"]

_SUMS: dict[str, tuple[str, str]] = {
    "day": ("u.day::text AS day", "u.day"),
    "adapter": (
        "coalesce(a.name, s.adapter_id) AS adapter, v.number AS adapter_version, "
        "s.adapter_digest AS adapter_digest",
        "1, 2, 3",
    ),
    "api_key": ("s.api_key_id AS api_key_id", "1"),
}
Text = Annotated[str, Query(max_length=256, pattern=r"^[^\x00]*$")]
_JOINS = {
    "adapter": "LEFT JOIN adapter_versions v ON v.id = s.adapter_version_id "
    "LEFT JOIN adapters a ON a.id = coalesce(v.adapter_id, s.adapter_id)",
}


@dataclass(frozen=True)
class LineQuery:
    """How a line, or a part of it, is taken apart; `limit` and `page` are of requests."""

    group_by: Group
    limit: int
    page: str | None
    part: Part


async def line_query(
    group_by: Annotated[
        Group, Query(description="Group by day, adapter, api_key or request")
    ] = "day",
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of requests to return")
    ] = 100,
    page: Annotated[
        str | None, Query(max_length=200, description="`next_page` of the previous answer")
    ] = None,
    day: Annotated[date | None, Query(description="Only usage on this day (UTC)")] = None,
    adapter: Annotated[
        Text | None,
        Query(
            description="Only usage of this adapter (`name` or `name@version`); empty: base model"
        ),
    ] = None,
    api_key: Annotated[
        Text | None, Query(description="Only usage by the API key with this id")
    ] = None,
) -> LineQuery:
    return LineQuery(group_by, limit, page, Part(day, adapter, api_key))


AskedLine = Annotated[LineQuery, Depends(line_query)]


class LineDetail(BaseModel):
    """One day, adapter version, key or event; fields that the query did not group by are null.
    `amount` is exact."""

    day: date | None = None
    adapter: str | None = None
    adapter_version: int | None = None
    adapter_digest: str | None = None
    api_key_id: str | None = None
    event_id: str | None = None
    request_id: str | None = None
    x_request_id: str | None = None
    time: datetime | None = None
    quantity: int
    amount: str


class LineDetails(BaseModel):
    """What a line, or the requested part of it, consists of. The quantities and exact amounts of
    all pages add up to the line's. A page of requests may have fewer than `limit`, or none, and yet
    a `next_page`: enough was looked through for one answer."""

    object: Literal["invoice_line_details"] = "invoice_line_details"
    invoice: str
    line: InvoiceLine
    group_by: Group
    data: list[LineDetail]
    has_more: bool = False
    next_page: str | None = None


async def details_of(
    session: AsyncSession, row: InvoiceRow, no: int, query: LineQuery
) -> LineDetails:
    """Raises NotFoundError for a line that is not there, BadRequestError for one that has no
    usage."""
    line = await session.get(InvoiceLineRow, (row.id, no)) if 0 < no < 2**31 else None
    if line is None:
        raise NotFoundError(f"The invoice {row.id!r} has no line {no}.")
    if line.kind not in USED or row.kind != "invoice":
        raise BadRequestError(
            f"Line {no} is of kind {line.kind!r}; only lines of usage and adjustments have "
            "details.",
            param="no",
            code="line_without_usage",
        )
    found = LineDetails(invoice=row.id, line=line_view(line, row), group_by=query.group_by, data=[])
    if query.group_by != "request":
        found.data = await _sums(session, line, query)
        return found
    events, found.next_page = await requests_of(
        session, row, line, query.part, page=query.page, limit=query.limit
    )
    found.data = [_request(each) for each in events]
    found.has_more = found.next_page is not None
    return found


async def _sums(session: AsyncSession, line: InvoiceLineRow, query: LineQuery) -> list[LineDetail]:
    """As the invoice took them; whatever was stored since is not among them."""
    group = query.group_by
    columns, keys = _SUMS[group]
    meter = line.meter or ""
    cost = AMOUNTS[meter]  # fails for what is no meter
    statement = text(
        f"""
        SELECT {columns}, sum(u.{meter}) AS quantity, sum(u.{cost}) AS amount
          FROM invoice_usage u JOIN usage_series s ON s.id = u.series_id {_JOINS.get(group, "")}
         WHERE u.invoice_id = :invoice AND (u.{meter} <> 0 OR u.{cost} <> 0)
           AND u.price_version_no = :price
           AND s.class = :class AND u.day >= :month
           AND u.day < (CAST(:month AS date) + interval '1 month')
           {query.part.conditions("u.day")}
         GROUP BY {keys} ORDER BY {keys}
        """
    )
    values: dict[str, Any] = {
        "invoice": line.invoice_id,
        "price": line.price_version_no,
        "class": line.class_,
        "month": line.month,
        **query.part.values(line.tenant_id),
    }
    found = (await session.execute(statement, values)).mappings()
    return [LineDetail(**{**each, **_counted(each)}) for each in found]


def _request(each: Behind) -> LineDetail:
    return LineDetail(
        event_id=each.event_id,
        request_id=each.request_id,
        x_request_id=each.x_request_id,
        time=each.at,
        quantity=each.quantity,
        amount=plain(each.amount),
    )


def _counted(row: Any) -> dict[str, Any]:
    return {"quantity": int(row["quantity"]), "amount": plain(Decimal(row["amount"]))}
