"""Waits and shares as they are asked for: the minutes with names to them. Knows no HTTP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.telemetry import OTHER
from tenora_platform.errors import BadRequestError, NotFoundError
from tenora_platform.receipts import repository as requests
from tenora_platform.receipts.repository import Request
from tenora_platform.waits import reading
from tenora_platform.waits.reading import GROUPS, AllWaited, Group, Known
from tenora_platform.waits.schemas import (
    Cause,
    ClassFairness,
    Fairness,
    GapPoint,
    NamedRequestWaits,
    NamedSequenceWaits,
    NamedWaitPart,
    RequestWaits,
    SequenceWaits,
    ShareView,
    WaitList,
    WaitPartView,
    WaitView,
)

BEHIND: tuple[Group, ...] = ("tenant", "cause", "other")
DEFAULT_RANGE = timedelta(hours=1)


def checked_range(start: datetime | None, end: datetime | None) -> tuple[datetime, datetime]:
    """The last hour unless they say otherwise. Raises BadRequestError."""
    until = end or datetime.now(UTC)
    since = start or until - DEFAULT_RANGE
    if since >= until:
        raise BadRequestError("start must be before end.", param="start", code="invalid_value")
    return since, until


def checked_groups(text: str | None) -> tuple[Group, ...]:
    """Raises BadRequestError."""
    if text is None:
        return BEHIND
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in GROUPS:
            raise BadRequestError(
                f"group_by must contain only {', '.join(GROUPS)} (comma-separated), not "
                f"{name[:40]!r}.",
                param="group_by",
                code="invalid_value",
            )
    return cast("tuple[Group, ...]", names)


async def wait_list(
    session: AsyncSession, start: datetime, end: datetime, groups: tuple[Group, ...]
) -> Callable[[], WaitList]:
    """What makes it."""
    found = await reading.waited(session, start, end, groups)
    ids = {each.groups.get(name, "") for each in found.most for name in ("tenant", "other")}
    names = await reading.known(session, ids)
    return partial(_wait_list, found, names, start, end, groups)


def _wait_list(
    found: AllWaited,
    names: Mapping[str, Known],
    start: datetime,
    end: datetime,
    groups: tuple[Group, ...],
) -> WaitList:
    data = [
        WaitView(
            tenant_id=each.groups.get("tenant"),
            tenant_name=_name(names, each.groups.get("tenant")),
            class_=each.groups.get("class"),
            cause=cast("Cause | None", each.groups.get("cause")),
            other_id=each.groups.get("other") or None,
            other_name=_name(names, each.groups.get("other")),
            seconds=each.seconds,
            sequences=each.sequences,
        )
        for each in found.most
    ]
    return WaitList(
        start=start,
        end=end,
        group_by=list(groups),
        seconds=found.seconds,
        total=found.total,
        data=data,
    )


async def fairness(session: AsyncSession, start: datetime, end: datetime) -> Callable[[], Fairness]:
    """What makes it: classes in which anything was served or waited."""
    service: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for each in await reading.served(session, start, end):
        service[each.class_][each.tenant] = each.service
    behind: defaultdict[str, dict[str, float]] = defaultdict(dict)
    waited = await reading.waited_for_others(session, start, end)
    for (class_, tenant), seconds in waited.items():
        behind[class_][tenant] = seconds
    gaps: defaultdict[str, list[GapPoint]] = defaultdict(list)
    for gap in await reading.gaps(session, start, end):
        gaps[gap.class_].append(GapPoint(at=gap.at, gap_tokens=gap.gap, bound_tokens=gap.bound))
    tenants = {key for found in (*service.values(), *behind.values()) for key in found}
    names = await reading.known(session, tenants)
    return partial(_fairness, start, end, service, behind, gaps, names)


def _fairness(
    start: datetime,
    end: datetime,
    service: Mapping[str, Mapping[str, float]],
    behind: Mapping[str, Mapping[str, float]],
    gaps: Mapping[str, list[GapPoint]],
    names: Mapping[str, Known],
) -> Fairness:
    classes = [
        ClassFairness(
            class_=name,
            service_tokens=round(sum(service.get(name, {}).values())),
            tenants=_shares(service.get(name, {}), behind.get(name, {}), names),
            gaps=gaps.get(name, []),
        )
        for name in sorted({*service, *behind, *gaps})
    ]
    return Fairness(start=start, end=end, classes=classes)


def _shares(
    service: Mapping[str, float], behind: Mapping[str, float], names: Mapping[str, Known]
) -> list[ShareView]:
    """Most weight first."""
    tenants = {*service, *behind}
    total = sum(service.values())
    weights = {key: names[key].weight for key in tenants if key in names}
    whole = sum(weights.values())
    views = [
        ShareView(
            tenant_id=key,
            tenant_name=_name(names, key),
            service_tokens=round(service.get(key, 0.0)),
            service_share=service.get(key, 0.0) / total if total else 0.0,
            weight=weights.get(key),
            weight_share=weights[key] / whole if key in weights and whole else None,
            waited_s=behind.get(key, 0.0),
        )
        for key in tenants
    ]
    return sorted(views, key=lambda view: (-(view.weight or 0.0), -view.service_tokens))


async def request_waits(session: AsyncSession, name: str, tenant_id: str) -> RequestWaits:
    """Raises NotFoundError."""
    request = await _find(session, name, tenant_id)
    kept = await reading.causes_of(session, request.events[0].row.request)
    sequences = [
        SequenceWaits(
            sequence=row.sequence,
            queue_ms=row.queue_ms,
            parts=None
            if row.sequence not in kept
            else [
                WaitPartView(cause=cast("Cause", cause), ms=ms)
                for cause, ms in _longest_first(kept[row.sequence])
            ],
        )
        for row, _ in request.events
    ]
    return RequestWaits(id=request.id, sequences=sequences)


async def named_request_waits(session: AsyncSession, name: str) -> NamedRequestWaits:
    """Of whichever tenant. Raises NotFoundError."""
    request = await _find(session, name, None)
    kept = await reading.parts_of(session, request.events[0].row.request)
    names = await reading.known(session, {other for all_ in kept.values() for _, other, _ in all_})
    sequences = [
        NamedSequenceWaits(
            sequence=row.sequence,
            queue_ms=row.queue_ms,
            parts=None
            if row.sequence not in kept
            else [
                NamedWaitPart(
                    cause=cast("Cause", cause),
                    ms=ms,
                    other_id=other or None,
                    other_name=_name(names, other),
                )
                for cause, other, ms in kept[row.sequence]
            ],
        )
        for row, _ in request.events
    ]
    return NamedRequestWaits(id=request.id, sequences=sequences)


async def _find(session: AsyncSession, name: str, tenant_id: str | None) -> Request:
    request = await requests.find(session, name, tenant_id)
    if request is None:
        raise NotFoundError(
            f"There is no finished request {name[:80]!r}. A request that has just ended may "
            "take a second to appear."
        )
    return request


def _longest_first(causes: Mapping[str, float]) -> Sequence[tuple[str, float]]:
    return sorted(causes.items(), key=lambda each: -each[1])


def _name(names: Mapping[str, Known], tenant: str | None) -> str | None:
    if tenant == OTHER:
        return "other tenants"
    found = names.get(tenant or "")
    return found.name if found else None
