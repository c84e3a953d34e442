"""What requests may be searched by, and what of it a sequence has to be. A request is found by any
of its sequences. It knows no order and no page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Integer,
    Select,
    and_,
    any_,
    case,
    cast,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.usage.reading import internal_numbers, tenant_no
from tenora_platform.usage.tables import UsageEventRow, UsageSeriesRow

Status = Literal["completed", "aborted", "failed"]
ToldStatus = Literal["completed", "aborted", "failed", "incomplete"]
"""As receipts say it: not all sequences of an incomplete one have ended and are in the books."""
FinishReason = Literal["stop", "length", "abort", "error"]
Sort = Literal["newest", "-queue", "-ttft", "-tpot", "-duration", "-cost"]
REASONS: dict[Status, tuple[FinishReason, ...]] = {
    "completed": ("stop", "length"),
    "aborted": ("abort",),
    "failed": ("error",),
}
_WORSE: dict[Status, tuple[str, ...]] = {
    "completed": ("abort", "error"),
    "aborted": ("error",),
    "failed": (),
}
_Event = UsageEventRow
_Other = aliased(UsageEventRow)
_Several = aliased(UsageEventRow)
MARGIN = timedelta(days=1)
"""A request's sequences do not end further apart."""


@dataclass(frozen=True)
class Filters:
    """What was asked for; None: whatever."""

    tenant_id: str | None  # None: all tenants (operator)
    start: datetime | None = None
    end: datetime | None = None  # exclusive
    api_key: str | None = None
    adapter: str | None = None  # name or name@3; "": the base model
    class_: str | None = None  # that served
    status: Status | None = None
    min_cost: Decimal | None = None
    max_cost: Decimal | None = None
    kind: str | None = None  # chatcmpl, cmpl, ...
    finish_reason: FinishReason | None = None
    min_queue_ms: float | None = None
    min_ttft_ms: float | None = None
    min_duration_ms: float | None = None
    sort: Sort = "newest"
    internal: bool = True  # with the platform's own tenants, where it is all

    def of(self, tenant_id: str | None, *, internal: bool = True) -> Filters:
        return replace(self, tenant_id=tenant_id, internal=internal)

    @property
    def narrowed(self) -> bool:
        """Whether only some series can have what is looked for."""
        found = (self.api_key, self.adapter, self.class_, self.kind)
        return any(each is not None for each in found)

    @property
    def selective(self) -> bool:
        """Whether any request of the window might not be among the found ones."""
        least = (self.min_cost, self.max_cost, self.min_queue_ms, self.min_ttft_ms)
        others = (self.status, self.finish_reason, self.min_duration_ms, *least)
        return self.narrowed or any(each is not None for each in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Between which times, or which keys, the requests are that are looked at; None: any."""

    start: datetime | None = None
    end: datetime | None = None
    first: UUID | None = None
    last: UUID | None = None

    def of_sequences(self, event: Any) -> list[ColumnElement[bool]]:
        """Where all sequences of these requests are."""
        found: list[ColumnElement[bool]] = []
        if self.start is not None:
            found.append(event.event_time >= self.start - MARGIN)
        if self.end is not None:
            found.append(event.event_time <= self.end + MARGIN)
        if self.first is not None:
            found.append(event.request >= self.first)
        if self.last is not None:
            found.append(event.request <= self.last)
        return found


@dataclass(frozen=True)
class Looked:
    """What a sequence has to be for its request to be found. `series` None: any."""

    filters: Filters
    series: Sequence[int] | None

    def fits(self, event: Any) -> list[ColumnElement[bool]]:
        """Whatever the time."""
        asked = self.filters
        found: list[ColumnElement[bool]] = []
        if asked.status is not None:
            found.append(event.finish_reason.in_(REASONS[asked.status]))
        if asked.finish_reason is not None:
            found.append(event.finish_reason == asked.finish_reason)
        for column, least in (
            (event.queue_ms, asked.min_queue_ms),
            (event.first_token_ms, asked.min_ttft_ms),
            (event.duration_ms, asked.min_duration_ms),
        ):
            if least is not None:
                found.append(column >= least)
        if self.series is not None:
            found.append(event.series_id == any_(cast(list(self.series), ARRAY(Integer))))
        return found

    def conditions(self, near: Near) -> list[ColumnElement[bool]]:
        """On UsageEventRow: that of each request that is found the first sequence that fits.
        `near`: where those are that it is asked of."""
        return [
            *of_tenants(_Event, self.filters),
            *self.fits(_Event),
            self._is_first(),
            *self._is_no_worse(),
            *in_window(self.filters),
            *_costs(self.filters, near),
        ]

    def _is_first(self) -> ColumnElement[bool]:
        earlier = and_(_Other.sequence < _Event.sequence, *self.fits(_Other))
        return or_(_Event.sequence == 0, ~_another(earlier))

    def _is_no_worse(self) -> list[ColumnElement[bool]]:
        status = self.filters.status
        if status is None or not _WORSE[status]:
            return []
        return [~_another(_Other.finish_reason.in_(_WORSE[status]))]


async def looked_for(session: AsyncSession, filters: Filters) -> Looked:
    """With the series that can have it."""
    if not filters.narrowed:
        return Looked(filters, None)
    conditions: list[ColumnElement[bool]] = []
    if filters.tenant_id is not None:
        conditions.append(UsageSeriesRow.tenant_id == filters.tenant_id)
    if filters.api_key is not None:
        conditions.append(UsageSeriesRow.api_key_id == filters.api_key)
    if filters.class_ is not None:
        conditions.append(UsageSeriesRow.class_ == filters.class_)
    if filters.kind is not None:
        conditions.append(UsageSeriesRow.kind == filters.kind)
    if filters.adapter:
        versions = _versions(filters.tenant_id, filters.adapter)
        conditions.append(UsageSeriesRow.adapter_version_id.in_(versions))
    elif filters.adapter is not None:
        conditions.append(UsageSeriesRow.adapter_digest.is_(None))
    found = await session.scalars(select(UsageSeriesRow.id).where(*conditions))
    return Looked(filters, list(found))


def _versions(tenant_id: str | None, adapter: str) -> Select[str]:
    """Of the adapter of that name, and of those of that name that were deleted."""
    name, _, number = adapter.partition("@")
    query = (
        select(AdapterVersionRow.id)
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .where(AdapterRow.name == name)
    )
    if tenant_id is not None:
        query = query.where(AdapterRow.tenant_id == tenant_id)
    if not number:
        return query
    wanted = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1
    return query.where(AdapterVersionRow.number == wanted)


def of_tenants(event: Any, filters: Filters) -> list[ColumnElement[bool]]:
    if filters.tenant_id is not None:
        return [event.tenant_no == tenant_no(filters.tenant_id)]
    return [] if filters.internal else [event.tenant_no.not_in(internal_numbers())]


def in_window(filters: Filters) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if filters.start is not None:
        found.append(_Event.event_time >= filters.start)
    if filters.end is not None:
        found.append(_Event.event_time < filters.end)
    return found


def _another(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether there is such a sequence of the same request."""
    return exists().where(_Other.request == _Event.request, condition)


def _costs(filters: Filters, near: Near) -> list[ColumnElement[bool]]:
    """Of the whole request, as far as it has a price. Most requests have one sequence, and are not
    looked up again."""
    if filters.min_cost is None and filters.max_cost is None:
        return []
    several = select(_Several.request).where(_Several.sequence > 0, *near.of_sequences(_Several))
    if filters.tenant_id is not None:
        several = several.where(*of_tenants(_Several, filters))
    total = (
        select(func.coalesce(func.sum(_Other.amount), 0))
        .where(_Other.request == _Event.request)
        .scalar_subquery()
    )
    cost = case((_Event.request.in_(several), total), else_=func.coalesce(_Event.amount, 0))
    found: list[ColumnElement[bool]] = []
    if filters.min_cost is not None:
        found.append(cost >= filters.min_cost)
    if filters.max_cost is not None:
        found.append(cost <= filters.max_cost)
    return found
