"""The requests behind a line of usage: each event with what of the line's meter it has, and what
that comes to by the price it was rated at. Occupancy has events of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import TextClause, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import HELD_METERS, METERS, PriceList
from tenora_platform.billing.repository import price_lists
from tenora_platform.errors import BadRequestError
from tenora_platform.ids import ulid_text
from tenora_platform.invoices.parts import Part
from tenora_platform.invoices.period import end_of, midnight
from tenora_platform.invoices.tables import InvoiceLineRow, InvoiceRow
from tenora_platform.usage.ids import event_text, request_text, x_request_id_of
from tenora_platform.usage.keys import events_table, is_of
from tenora_platform.usage.reading import floor, rating_of
from tenora_platform.usage.records import stored_billable
from tenora_platform.usage.slices import Hour, sliced, windows
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
) -> tuple[list[Behind], str | None]:
    """By time, at most `limit` of them; and the next page, if there may be more: enough may have
    been looked through for one answer. Raises BadRequestError for a page that is none."""
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
    meter = line.meter or ""
    of_requests = meter in _QUANTITIES
    statement = _events(meter, part) if of_requests else _occupancy_events(meter, part)
    found: list[Mapping[Any, Any]] = []
    stopped: datetime | None = None
    async for some in sliced(_hours(session, meter, part, values)):
        begins, ends = zip(*some.spans, strict=True)
        slice_ = {"begins": list(begins), "ends": list(ends), "limit": limit + 1 - len(found)}
        found += (await session.execute(statement, {**values, **slice_})).mappings().all()
        if len(found) > limit:
            break
        stopped = some.spans[-1].ends if some.stops else None
    if of_requests:
        behind = await _rated(session, found[:limit], line)
    else:
        behind = [_occupancy(each) for each in found[:limit]]
    if len(found) > limit:
        return behind, behind[-1].place
    return behind, None if stopped is None else _place(stopped, UUID(int=0), -1)


async def _hours(
    session: AsyncSession, meter: str, part: Part, values: Mapping[str, Any]
) -> AsyncIterator[Hour]:
    """Those in which the line's part was used, oldest first, as the sums know."""
    if meter not in METERS:
        raise LookupError(f"{meter!r} is not a meter")
    statement = text(
        f"""
        SELECT u.hour, greatest(sum(u.sequences), count(*))
          FROM usage_hours u JOIN usage_series s ON s.id = u.series_id
         WHERE u.tenant_id = :tenant AND u.hour >= :since AND u.hour < :until
         GROUP BY u.hour
        HAVING bool_or(u.price_version_no = :price AND s.class = :class AND u.{meter} > 0
                       {part.conditions("(u.hour AT TIME ZONE 'UTC')::date")})
         ORDER BY u.hour
        """
    )
    begin = max(values["begin"], floor(values["after_time"], "hour"))
    for since, until in windows(begin, values["end"], newest_first=False):
        within = {**values, "since": since, "until": until}
        for hour, sequences in await session.execute(statement, within):
            yield Hour(hour, int(sequences))


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
    return _in_spans(
        "request, sequence, event_time",
        f"""
        SELECT e.request, e.sequence, e.event_time
          FROM usage_events e JOIN usage_series s ON s.id = e.series_id
          {taken}
           AND e.event_time >= greatest(span.begins, :begin, :after_time)
           AND e.event_time < least(span.ends, :end) AND {_QUANTITIES[meter]} > 0
           {part.conditions("(e.event_time AT TIME ZONE 'UTC')::date")}
           AND (e.event_time, e.request, e.sequence) > (:after_time, :after_id, :after_sequence)
         ORDER BY e.event_time, e.request, e.sequence LIMIT :limit
        """,
        "event_time, request, sequence",
    )


def _occupancy_events(meter: str, part: Part) -> TextClause:
    if meter not in HELD_METERS:
        raise LookupError(f"{meter!r} is not a meter")
    taken = _TAKEN.format(key="e.id", sequence="-1")
    return _in_spans(
        "id, ends, quantity, amount",
        f"""
        SELECT e.id, e.ends, e.quantity, e.amount
          FROM occupancy_events e JOIN usage_series s ON s.id = e.series_id
          {taken}
           AND e.meter = :meter AND e.ends >= greatest(span.begins, :begin, :after_time)
           AND e.ends < least(span.ends, :end)
           {part.conditions("(e.ends AT TIME ZONE 'UTC')::date")}
           AND (e.ends, e.id, 0) > (:after_time, :after_id, :after_sequence)
         ORDER BY e.ends, e.id LIMIT :limit
        """,
        "ends, id",
    )


def _in_spans(columns: str, inside: str, order: str) -> TextClause:
    """The query in each of these hours alone, so that no index but that of time is of use."""
    return text(
        f"""
        SELECT {", ".join(f"found.{each}" for each in columns.split(", "))}
          FROM unnest(CAST(:begins AS timestamptz[]), CAST(:ends AS timestamptz[]))
               AS span (begins, ends), LATERAL ({inside}) AS found
         ORDER BY {", ".join(f"found.{each}" for each in order.split(", "))} LIMIT :limit
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
    if not keys:
        return []
    lists = {price.no: price for price in await price_lists(session)}
    these = events_table([(each["request"], each["sequence"]) for each in keys])
    query = (
        select(UsageEventRow, UsageSeriesRow)
        .join(UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id)
        .join(these, is_of(these))
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
