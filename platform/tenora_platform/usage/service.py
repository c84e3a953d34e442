"""Usage and costs as pages of time buckets. Knows calendars and how results are put together; the
sums are the repository's."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Literal, NoReturn

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import METERS, Meter
from tenora_platform.billing.rating import exact_sum
from tenora_platform.errors import BadRequestError
from tenora_platform.times import in_bounds
from tenora_platform.usage import reading
from tenora_platform.usage.ranking import greatest, group_counts, merged, widest
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
RESULTS_MAX = 10_000
"""Of a page: 4 MB of JSON. A list of so many is sorted within 10 ms, while no other thread runs."""
_PAGE = "%Y%m%dT%H%M%SZ"
CURRENCY_WITHOUT_LINES = "USD"  # of a result that has nothing but unrated events


@dataclass(frozen=True)
class Query:
    """What was asked for, and which buckets of it are on this page."""

    window: Window  # of this page
    buckets: tuple[tuple[datetime, datetime], ...]
    next_page: str | None

    def shortened(self, count: int) -> Query:
        """With so many buckets at most; the others are on the next page."""
        if count >= len(self.buckets):
            return self
        next_, _ = self.buckets[count]
        window = replace(self.window, end=next_)
        return Query(window, self.buckets[:count], _page_name(next_))

    def within(self, sums: Sequence[Summed]) -> list[Summed]:
        """Those that are on this page."""
        return [each for each in sums if each.bucket < self.window.end]


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
    return Query(window, tuple(buckets), _page_name(begin) if more else None)


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


def _page_name(begin: datetime) -> str:
    return begin.strftime(_PAGE)


def _page_start(page: str) -> datetime:
    try:
        start = datetime.strptime(page, _PAGE).replace(tzinfo=UTC)
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


async def _fitting(
    session: AsyncSession, query: Query, shape: Shape, edges: Sequence[Summed]
) -> Query:
    """The query with as many of its buckets as have RESULTS_MAX results together; the others are on
    the next page. Raises BadRequestError for a first bucket that has more by itself."""
    if not query.window.groups:
        return query
    if shape.top is not None:
        return query.shortened(max(1, RESULTS_MAX // (shape.top + 1)))
    counts = await group_counts(session, query.window, edges)
    until = list(accumulate(counts[begin] for begin, _ in query.buckets))
    fit = bisect_right(until, RESULTS_MAX)
    if not fit:
        await _refuse_wide(session, query, until[0])
    return query.shortened(fit)


async def _refuse_wide(session: AsyncSession, query: Query, count: int) -> NoReturn:
    """Raises BadRequestError."""
    first = query.shortened(1).window
    key = await widest(session, first)
    most = f"; most differ in {key}" if key is not None else ""
    raise BadRequestError(
        f"The bucket from {query.buckets[0][0]:%Y-%m-%dT%H:%M}Z has {count} groups, at most "
        f"{RESULTS_MAX} are returned{most}. Group by less, use a shorter bucket, or ask /v1/usage "
        "or /admin/v1/usage with top.",
        param="group_by",
        code="too_many_groups",
    )


@dataclass(frozen=True)
class Found:
    """What a page consists of; to put it together takes as long as it is large."""

    query: Query
    sums: Sequence[Summed]

    @property
    def next_page(self) -> str | None:
        return self.query.next_page


@dataclass(frozen=True)
class FoundUsage(Found):
    """`others`: how many groups are added up as one."""

    shape: Shape
    others: int | None

    def page(self) -> UsagePage:
        found = tallied(self.sums)
        data = [
            UsageBucket(
                start=begin,
                end=end,
                results=results(found.get(begin, {}), self.shape, self.others),
            )
            for begin, end in self.query.buckets
        ]
        groups, total = totals(found, self.shape, self.others)
        return UsagePage(
            data=data,
            groups=groups,
            total=total,
            has_more=self.next_page is not None,
            next_page=self.next_page,
        )


async def find_usage(session: AsyncSession, query: Query, shape: Shape = SHAPE) -> FoundUsage:
    """Raises BadRequestError for a part of an hour that has left the database, and for a bucket of
    too many groups."""
    await _refuse_archived(session, query.window)
    edges = await reading.of_edges(session, query.window)
    query = await _fitting(session, query, shape, edges)
    edges = query.within(edges)
    kept, others = await greatest(session, query.window, shape, edges)
    sums = [*await reading.stored(session, query.window, kept), *merged(edges, kept)]
    return FoundUsage(query, sums, shape, others)


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


Costs = dict[datetime, dict[tuple[Keys, str], _Cost]]


def money(amount: Decimal) -> str:
    """Plain digits with all twelve decimals: no exponent, nothing rounded."""
    return f"{amount:.12f}"


class FoundCosts(Found):
    def page(self) -> CostPage:
        costs: Costs = defaultdict(lambda: defaultdict(_Cost))
        unrated: Counter[tuple[datetime, Keys]] = Counter()
        for each in self.sums:
            if each.meter == "unrated":
                unrated[each.bucket, each.group] += each.quantity
            elif each.currency is not None and each.quantity:
                meter = _PRICED.get(each.meter)
                if meter is not None:
                    costs[each.bucket][each.group, each.currency].add(meter, each)
        for bucket, in_bucket in _by_bucket(unrated).items():
            _add_unrated(costs[bucket], in_bucket)
        data = [
            CostBucket(start=begin, end=end, results=_in_order(costs[begin]))
            for begin, end in self.query.buckets
        ]
        return CostPage(data=data, has_more=self.next_page is not None, next_page=self.next_page)


def _by_bucket(unrated: Mapping[tuple[datetime, Keys], int]) -> dict[datetime, dict[Keys, int]]:
    found: dict[datetime, dict[Keys, int]] = defaultdict(dict)
    for (bucket, keys), events in unrated.items():
        if events:
            found[bucket][keys] = events
    return found


def _add_unrated(costs: dict[tuple[Keys, str], _Cost], unrated: Mapping[Keys, int]) -> None:
    """To a result of its group in one of its currencies."""
    rated: dict[Keys, str] = {}
    for keys, currency in costs:
        rated[keys] = min(currency, rated.get(keys, currency))
    for keys, events in unrated.items():
        costs[keys, rated.get(keys, CURRENCY_WITHOUT_LINES)].unrated += events


def _in_order(costs: Mapping[tuple[Keys, str], _Cost]) -> list[CostResult]:
    ordered = sorted(costs.items(), key=lambda it: (in_order(it[0][0]), it[0][1]))
    return [cost.result(keys, currency) for (keys, currency), cost in ordered]


async def find_costs(session: AsyncSession, query: Query) -> FoundCosts:
    """Raises as `find_usage`."""
    await _refuse_archived(session, query.window)
    edges = await reading.of_edges(session, query.window)
    query = await _fitting(session, query, SHAPE, edges)
    return FoundCosts(query, [*await reading.stored(session, query.window), *query.within(edges)])
