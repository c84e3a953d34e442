"""Usage and costs as pages of time buckets. Knows calendars and how results are put together; the
sums are the repository's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import METERS, Meter
from tenora_platform.billing.rating import exact_sum
from tenora_platform.errors import BadRequestError
from tenora_platform.times import in_bounds
from tenora_platform.usage import reading
from tenora_platform.usage.ranking import greatest, merged
from tenora_platform.usage.reading import Group, Keys, Summed, Window, floor
from tenora_platform.usage.schemas import (
    Bucket,
    CostBucket,
    CostPage,
    CostResult,
    MeterCost,
    UsageBucket,
    UsagePage,
)
from tenora_platform.usage.tally import Shape, in_order, results, tallied, totals

_UNITS: Mapping[Bucket, Literal["hour", "day", "month"]] = {
    "1h": "hour",
    "1d": "day",
    "1mo": "month",
}
TENANT_GROUPS: tuple[Group, ...] = (
    "adapter",
    "adapter_version",
    "api_key",
    "model",
    "tier",
    "kind",
)
ADMIN_GROUPS: tuple[Group, ...] = ("tenant", *TENANT_GROUPS)
_PRICED: Mapping[str, Meter] = {meter: meter for meter in METERS}
SHAPE = Shape()
CURRENCY_WITHOUT_LINES = "USD"  # of a result that has nothing but unrated events


@dataclass(frozen=True)
class Query:
    """What was asked for, and which buckets of it are on this page."""

    window: Window  # of this page
    buckets: tuple[tuple[datetime, datetime], ...]
    next_page: str | None


def make_query(
    *,
    start: datetime | None,
    end: datetime | None,
    bucket: Bucket,
    group_by: str | None,
    limit: int,
    page: str | None,
    groups: tuple[Group, ...],
    tenant_id: str | None,
    internal: bool = False,
) -> Query:
    """`start` and `end` are in UTC. Without `start` the current month, without `end` this hour too.
    Raises BadRequestError."""
    now = datetime.now(UTC)
    last = end if end is not None else _next(floor(now, "hour"), "hour")
    first = start if start is not None else floor(now, "month")
    if first >= last:
        raise BadRequestError("start must be before end.", param="start", code="invalid_value")
    unit = _UNITS[bucket]
    if page is not None:
        first = max(first, _page_start(page))
    buckets: list[tuple[datetime, datetime]] = []
    begin = floor(first, unit)
    while begin < last and len(buckets) < limit:
        buckets.append((begin, _next(begin, unit)))
        begin = buckets[-1][1]
    more = begin < last
    window = Window(
        start=first,
        end=begin if more else last,
        unit=unit,
        groups=_groups(group_by, groups),
        tenant_id=tenant_id,
        internal=internal,
    )
    return Query(window, tuple(buckets), begin.strftime("%Y%m%dT%H%M%SZ") if more else None)


def _groups(group_by: str | None, allowed: tuple[Group, ...]) -> tuple[Group, ...]:
    if not group_by:
        return ()
    chosen: dict[Group, None] = {}
    for name in group_by.split(","):
        match = next((group for group in allowed if group == name.strip()), None)
        if match is None:
            raise BadRequestError(
                f"group_by must contain only {', '.join(allowed)}, not {name.strip()[:40]!r}.",
                param="group_by",
                code="invalid_value",
            )
        chosen[match] = None
    return tuple(chosen)


def _page_start(page: str) -> datetime:
    try:
        start = datetime.strptime(page, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if not in_bounds(start):
            raise ValueError("out of bounds")
        return start
    except ValueError as error:
        raise BadRequestError(
            "page is not a next_page from this route.", param="page", code="invalid_value"
        ) from error


def _next(begin: datetime, unit: str) -> datetime:
    if unit == "hour":
        return begin + timedelta(hours=1)
    if unit == "day":
        return begin + timedelta(days=1)
    return (begin + timedelta(days=32)).replace(day=1)


async def _refuse_archived(session: AsyncSession, window: Window) -> None:
    """Raises BadRequestError for a part of an hour that has left the database."""
    gone = await reading.archived_edge(session, window)
    if gone is not None:
        raise BadRequestError(
            f"Usage of {gone.start:%Y-%m} is stored only by the hour; start and end must be "
            "whole hours.",
            param="start" if gone.start == window.start else "end",
            code="usage_archived",
        )


async def usage_page(session: AsyncSession, query: Query, shape: Shape = SHAPE) -> UsagePage:
    """Raises BadRequestError for a part of an hour that has left the database."""
    await _refuse_archived(session, query.window)
    edges = await reading.of_edges(session, query.window)
    kept, others = await greatest(session, query.window, shape, edges)
    sums = [*await reading.stored(session, query.window, kept), *merged(edges, kept)]
    found = tallied(sums)
    data = [
        UsageBucket(start=begin, end=end, results=results(found.get(begin, {}), shape, others))
        for begin, end in query.buckets
    ]
    groups, total = totals(found, shape, others)
    return UsagePage(
        data=data,
        groups=groups,
        total=total,
        has_more=query.next_page is not None,
        next_page=query.next_page,
    )


class _Cost:
    """One result while it is being added up."""

    def __init__(self) -> None:
        self.quantities: Counter[Meter] = Counter()
        self.amounts: defaultdict[Meter, Decimal] = defaultdict(Decimal)
        self.unrated = 0

    def add(self, meter: Meter, each: Summed) -> None:
        self.quantities[meter] += each.quantity
        self.amounts[meter] = exact_sum((self.amounts[meter], each.amount))

    def result(self, keys: Keys, currency: str) -> CostResult:
        return CostResult(
            **dict(keys),
            amount=money(exact_sum(self.amounts.values())),
            currency=currency,
            meters=[
                MeterCost(meter=meter, quantity=quantity, amount=money(self.amounts[meter]))
                for meter, quantity in sorted(self.quantities.items())
            ],
            unrated_events=self.unrated,
        )


def money(amount: Decimal) -> str:
    """Plain digits with all twelve decimals: no exponent, nothing rounded."""
    return f"{amount:.12f}"


async def cost_page(session: AsyncSession, query: Query) -> CostPage:
    """Raises BadRequestError for a part of an hour that has left the database."""
    await _refuse_archived(session, query.window)
    costs: dict[datetime, dict[tuple[Keys, str], _Cost]] = defaultdict(lambda: defaultdict(_Cost))
    unrated: Counter[tuple[datetime, Keys]] = Counter()
    for each in await reading.sums(session, query.window):
        if each.meter == "unrated":
            unrated[each.bucket, each.group] += each.quantity
        elif each.currency is not None and each.quantity:
            meter = _PRICED.get(each.meter)
            if meter is not None:
                costs[each.bucket][each.group, each.currency].add(meter, each)
    for (bucket, keys), events in unrated.items():
        if events:
            in_bucket = costs[bucket]
            rated = min((currency for of, currency in in_bucket if of == keys), default=None)
            in_bucket[keys, rated or CURRENCY_WITHOUT_LINES].unrated += events
    data = [
        CostBucket(
            start=begin,
            end=end,
            results=[
                cost.result(keys, currency)
                for (keys, currency), cost in sorted(
                    costs[begin].items(), key=lambda it: (in_order(it[0][0]), it[0][1])
                )
            ],
        )
        for begin, end in query.buckets
    ]
    return CostPage(data=data, has_more=query.next_page is not None, next_page=query.next_page)
