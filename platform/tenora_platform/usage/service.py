"""Usage and costs as pages of time buckets. Knows calendars and how results are put together; the
sums are the repository's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.errors import BadRequestError
from tenora_platform.times import in_bounds
from tenora_platform.usage import repository
from tenora_platform.usage.repository import Group, Window
from tenora_platform.usage.schemas import (
    Bucket,
    CostBucket,
    CostPage,
    CostResult,
    GroupKeys,
    MeterCost,
    UsageBucket,
    UsagePage,
    UsageResult,
)

_UNITS: Mapping[Bucket, Literal["hour", "day", "month"]] = {
    "1h": "hour",
    "1d": "day",
    "1mo": "month",
}
TENANT_GROUPS: tuple[Group, ...] = ("adapter", "adapter_version", "api_key", "model")
ADMIN_GROUPS: tuple[Group, ...] = ("tenant", *TENANT_GROUPS)
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
) -> Query:
    """`start` and `end` are in UTC. Without `start` the current month, without `end` until now.
    Raises BadRequestError."""
    now = datetime.now(UTC)
    last = end if end is not None else now + timedelta(seconds=1)
    first = start if start is not None else _floor(now, "month")
    if first >= last:
        raise BadRequestError("start must be before end.", param="start", code="invalid_value")
    unit = _UNITS[bucket]
    if page is not None:
        first = max(first, _page_start(page))
    buckets: list[tuple[datetime, datetime]] = []
    begin = _floor(first, unit)
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
                f"group_by takes {', '.join(allowed)}, not {name.strip()[:40]!r}.",
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
            "page is not a next_page of this route.", param="page", code="invalid_value"
        ) from error


def _floor(time: datetime, unit: str) -> datetime:
    hour = time.replace(minute=0, second=0, microsecond=0)
    if unit == "hour":
        return hour
    day = hour.replace(hour=0)
    return day if unit == "day" else day.replace(day=1)


def _next(begin: datetime, unit: str) -> datetime:
    if unit == "hour":
        return begin + timedelta(hours=1)
    if unit == "day":
        return begin + timedelta(days=1)
    return (begin + timedelta(days=32)).replace(day=1)


def _keys(row: Mapping[str, Any]) -> GroupKeys:
    return GroupKeys.model_validate(
        {name: row[name] for name in GroupKeys.model_fields if name in row}
    )


async def usage_page(session: AsyncSession, query: Query) -> UsagePage:
    results: dict[datetime, list[UsageResult]] = defaultdict(list)
    for row in await repository.sum_usage(session, query.window):
        prompt, cached = int(row["prompt_tokens"]), int(row["cached_tokens"])
        results[row["bucket"]].append(
            UsageResult(
                **_keys(row).model_dump(),
                requests=row["requests"],
                sequences=row["sequences"],
                prompt_tokens=prompt,
                cached_tokens=cached,
                uncached_tokens=prompt - cached,
                output_tokens=int(row["output_tokens"]),
            )
        )
    data = [
        UsageBucket(start=begin, end=end, results=results[begin]) for begin, end in query.buckets
    ]
    return UsagePage(data=data, has_more=query.next_page is not None, next_page=query.next_page)


class _Cost:
    """One result while it is being added up."""

    def __init__(self, keys: GroupKeys, currency: str) -> None:
        self.keys = keys
        self.currency = currency
        self.amount = Decimal(0)
        self.meters: list[MeterCost] = []
        self.unrated = 0

    def result(self) -> CostResult:
        return CostResult(
            **self.keys.model_dump(),
            amount=money(self.amount),
            currency=self.currency,
            meters=self.meters,
            unrated_events=self.unrated,
        )


def money(amount: Decimal) -> str:
    """Plain digits with all twelve decimals: no exponent, nothing rounded."""
    return f"{amount:.12f}"


async def cost_page(session: AsyncSession, query: Query) -> CostPage:
    costs: dict[datetime, dict[tuple[str, str], _Cost]] = defaultdict(dict)
    for row in await repository.sum_costs(session, query.window):
        keys = _keys(row)
        found = costs[row["bucket"]].setdefault(
            (keys.model_dump_json(), row["currency"]), _Cost(keys, row["currency"])
        )
        found.amount = exact_sum((found.amount, row["amount"]))
        found.meters.append(
            MeterCost(
                meter=row["meter"], quantity=int(row["quantity"]), amount=money(row["amount"])
            )
        )
    for row in await repository.count_unrated(session, query.window):
        keys = _keys(row)
        in_bucket = costs[row["bucket"]]
        name = keys.model_dump_json()
        rated = next((cost for (other, _), cost in in_bucket.items() if other == name), None)
        if rated is None:
            rated = in_bucket[name, ""] = _Cost(keys, CURRENCY_WITHOUT_LINES)
        rated.unrated += row["events"]
    data = [
        CostBucket(start=begin, end=end, results=[cost.result() for cost in costs[begin].values()])
        for begin, end in query.buckets
    ]
    return CostPage(data=data, has_more=query.next_page is not None, next_page=query.next_page)
