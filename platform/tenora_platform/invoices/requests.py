"""The requests behind a line of usage: each event with what of the line's meter it has, and what
that comes to by the price it was rated at. Occupancy has events of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import TextClause, or_, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import HELD_METERS, PriceList
from tenora_platform.billing.repository import price_lists
from tenora_platform.errors import BadRequestError
from tenora_platform.ids import ulid_text
from tenora_platform.invoices.parts import Part
from tenora_platform.invoices.period import end_of, midnight
from tenora_platform.invoices.tables import InvoiceLineRow, InvoiceRow
from tenora_platform.usage.ids import event_text, request_text, x_request_id_of
from tenora_platform.usage.reading import rating_of
from tenora_platform.usage.records import stored_billable
from tenora_platform.usage.tables import UsageEventRow, UsageSeriesRow

_QUANTITIES = {
    "uncached_prefill": "e.prompt_tokens - e.cached_tokens",
    "cached_prefill": "e.cached_tokens",
    "output": "e.output_tokens",
    "cold_load": "e.cold_loads",
}
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Behind:
    """One event of a line. `request_id` None: of occupancy, which no request caused."""

    at: datetime
    event_id: str
    request_id: str | None
    x_request_id: str | None
    quantity: int
    amount: Decimal
    place: str  # where a page after it begins


async def requests_of(
    session: AsyncSession,
    row: InvoiceRow,
    line: InvoiceLineRow,
    part: Part,
    *,
    page: str | None,
    limit: int,
) -> list[Behind]:
    """By time; one more than `limit`. Raises BadRequestError for a page that is none."""
    spans = await _taken(session, row, line.month or row.period)
    values: dict[str, Any] = {
        "tenant": row.tenant_id,
        "since": [each.since for each in spans],
        "until": [each.until for each in spans],
        "meter": line.meter,
        "class": line.class_,
        "price": line.price_version_no,
        "begin": midnight(line.month) if line.month else _BEGINNING,
        "end": midnight(end_of(line.month)) if line.month else _BEGINNING,
        "limit": limit + 1,
        **_after(page),
        **part.values(row.tenant_id),
    }
    if line.meter not in _QUANTITIES:
        found = await session.execute(_occupancy_events(line.meter or "", part), values)
        return [_occupancy(each) for each in found.mappings()]
    rows = (await session.execute(_events(line.meter, part), values)).mappings().all()
    return await _rated(session, rows, line)


def _after(page: str | None) -> dict[str, Any]:
    """The place of the last one seen."""
    if page is None:
        return {"after_time": _BEGINNING, "after_id": UUID(int=0), "after_sequence": -1}
    try:
        at, key, sequence = page.split("~")
        time = datetime.fromisoformat(at)
        if time.tzinfo is None or not -1 <= int(sequence) < 2**31:
            raise ValueError
        return {"after_time": time, "after_id": UUID(key), "after_sequence": int(sequence)}
    except ValueError:
        raise BadRequestError("page is not a next_page from this route.", param="page") from None


def _place(at: datetime, key: UUID, sequence: int) -> str:
    return f"{at.astimezone(UTC).isoformat()}~{key.hex}~{sequence}"


async def _taken(session: AsyncSession, row: InvoiceRow, month: date) -> list[Span]:
    """When usage of this month was booked that the invoice took: what no other invoice had that
    held while it was made."""
    other = InvoiceRow
    query = select(other.id, other.taken_at, other.voided_at).where(
        other.tenant_id == row.tenant_id,
        other.currency == row.currency,
        other.kind == "invoice",
        other.period >= month,
        other.taken_at <= row.taken_at,
        or_(other.status != "draft", other.id == row.id),
    )
    owned: dict[str, list[Span]] = {}
    free = [Span(_BEGINNING, _BEGINNING)]  # what nobody has, up to the last taking
    happened: list[tuple[datetime, str, bool]] = []
    for id_, taken_at, voided_at in await session.execute(query):
        assert taken_at is not None  # compared with
        happened.append((taken_at, id_, True))
        if voided_at is not None:
            happened.append((voided_at, id_, False))
    for at, id_, takes in sorted(happened):
        if takes:
            owned[id_] = [*free, Span(max(each.until for each in _all(owned, free)), at)]
            free = []
        else:
            free += owned.pop(id_)
        if id_ == row.id:
            break
    return owned[row.id]


class Span(NamedTuple):
    """After `since`, until `until`."""

    since: datetime
    until: datetime


def _all(owned: Mapping[str, Sequence[Span]], free: Sequence[Span]) -> list[Span]:
    return [*free, *(span for spans in owned.values() for span in spans)]


_TAKEN = """
  LEFT JOIN late_ratings l ON l.request = {key} AND l.sequence = {sequence}
 WHERE e.tenant_no = (SELECT no FROM tenants WHERE id = :tenant)
   AND e.price_version_no = :price AND s.class = :class
   AND EXISTS (
     SELECT 1 FROM unnest(CAST(:since AS timestamptz[]), CAST(:until AS timestamptz[]))
         AS taken (since, until)
      WHERE coalesce(l.rated_at, e.ingested_at) > taken.since
        AND coalesce(l.rated_at, e.ingested_at) <= taken.until)
"""
"""What was booked while the invoice's own spans ran: see `usage.booking`."""


def _events(meter: str, part: Part) -> TextClause:
    taken = _TAKEN.format(key="e.request", sequence="e.sequence")
    return text(
        f"""
        SELECT e.request, e.sequence, e.event_time
          FROM usage_events e JOIN usage_series s ON s.id = e.series_id
          {taken}
           AND e.event_time >= :begin AND e.event_time < :end AND {_QUANTITIES[meter]} > 0
           {part.conditions("(e.event_time AT TIME ZONE 'UTC')::date")}
           AND (e.event_time, e.request, e.sequence) > (:after_time, :after_id, :after_sequence)
         ORDER BY e.event_time, e.request, e.sequence LIMIT :limit
        """
    )


def _occupancy_events(meter: str, part: Part) -> TextClause:
    if meter not in HELD_METERS:
        raise LookupError(f"{meter!r} is not a meter")
    taken = _TAKEN.format(key="e.id", sequence="-1")
    return text(
        f"""
        SELECT e.id, e.ends, e.quantity, e.amount
          FROM occupancy_events e JOIN usage_series s ON s.id = e.series_id
          {taken}
           AND e.meter = :meter AND e.ends >= :begin AND e.ends < :end
           {part.conditions("(e.ends AT TIME ZONE 'UTC')::date")}
           AND (e.ends, e.id, 0) > (:after_time, :after_id, :after_sequence)
         ORDER BY e.ends, e.id LIMIT :limit
        """
    )


def _occupancy(row: Mapping[Any, Any]) -> Behind:
    return Behind(
        at=row["ends"],
        event_id=f"occ_{ulid_text(row['id'].int)}",
        request_id=None,
        x_request_id=None,
        quantity=row["quantity"],
        amount=row["amount"],
        place=_place(row["ends"], row["id"], 0),
    )


async def _rated(
    session: AsyncSession, keys: Sequence[Mapping[Any, Any]], line: InvoiceLineRow
) -> list[Behind]:
    """With what the line's meter comes to, by the list and at the place it was rated at."""
    wanted = [(each["request"], each["sequence"]) for each in keys]
    if not wanted:
        return []
    lists = {price.no: price for price in await price_lists(session)}
    query = (
        select(UsageEventRow, UsageSeriesRow)
        .join(UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id)
        .where(tuple_(UsageEventRow.request, UsageEventRow.sequence).in_(wanted))
        .order_by(UsageEventRow.event_time, UsageEventRow.request, UsageEventRow.sequence)
    )
    return [_behind(event, series, lists, line) for event, series in await session.execute(query)]


def _behind(
    row: UsageEventRow,
    series: UsageSeriesRow,
    lists: Mapping[int, PriceList],
    line: InvoiceLineRow,
) -> Behind:
    event = stored_billable(row, series)
    rating = rating_of(lists, event, row.price_version_no, row.positions)
    lines = () if rating is None else rating.lines
    rated = next((each for each in lines if each.meter == line.meter), None)
    return Behind(
        at=row.event_time,
        event_id=event_text(series.kind, row.request, row.sequence),
        request_id=request_text(series.kind, row.request),
        x_request_id=x_request_id_of(row.request, row.x_request_id),
        quantity=0 if rated is None else rated.quantity,
        amount=Decimal(0) if rated is None else rated.amount,
        place=_place(row.event_time, row.request, row.sequence),
    )
