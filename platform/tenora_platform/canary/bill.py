"""What the canary's requests should cost by the tokens that their answers said, and what they were
billed. Reads the books as they are stored; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.tables import PriceRow, PriceVersionRow
from tenora_platform.canary.asking import Answer
from tenora_platform.reconciliation.tariff import EVENT_METERS, cost, is_amount, shown, tariffs
from tenora_platform.usage.ids import request_of
from tenora_platform.usage.tables import UsageEventRow, UsageSeriesRow


@dataclass(frozen=True, slots=True)
class Billed:
    """The events of one answer, each with its series."""

    events: list[tuple[UsageEventRow, UsageSeriesRow]]

    @property
    def is_whole(self) -> bool:
        """There is one, and it has a price."""
        return bool(self.events) and all(
            event.price_version_no is not None for event, _ in self.events
        )


async def billed(session: AsyncSession, answer: Answer) -> Billed:
    _, request = request_of(answer.request_id)
    query = (
        select(UsageEventRow, UsageSeriesRow)
        .join(UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id)
        .where(UsageEventRow.request == request)
    )
    return Billed([(event, series) for event, series in await session.execute(query)])


async def problem_of(
    session: AsyncSession, tenant_id: str, answer: Answer, bill: Billed
) -> str | None:
    """What is wrong with the bill of an answer; None if it is right to the last digit."""
    if len(bill.events) != 1:
        return f"{answer.request_id} has {len(bill.events)} usage events instead of one"
    event, series = bill.events[0]
    if series.tenant_id != tenant_id:
        return f"{answer.request_id} is billed to another tenant, {series.tenant_id}"
    counted = (event.prompt_tokens, event.cached_tokens, event.output_tokens)
    told = (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens)
    if counted != told:
        return f"{answer.request_id} is billed for {counted} tokens, but the answer said {told}"
    if event.price_version_no is None:
        return f"{answer.request_id} has no price"
    charged = await _cost(session, event, series)
    if not is_amount(event.amount, charged):
        return (
            f"{answer.request_id} costs {event.amount}, but by its price list it "
            f"should cost {shown(charged)}"
        )
    return None


async def _cost(session: AsyncSession, event: UsageEventRow, series: UsageSeriesRow) -> int:
    """Picos, by the list that the event names."""
    version = await session.scalar(
        select(PriceVersionRow).where(PriceVersionRow.no == event.price_version_no)
    )
    if version is None:
        return -1
    prices: list[tuple[int, str, str, int, Decimal]] = [
        (version.no, row.meter, row.class_, row.from_quantity, row.per_million)
        for row in await session.scalars(
            select(PriceRow).where(PriceRow.price_version_id == version.id)
        )
    ]
    tariff = tariffs([(version.no, version.id, version.currency)], prices)[version.no]
    uncached = event.prompt_tokens - event.cached_tokens
    used = (uncached, event.cached_tokens, event.output_tokens, event.cold_loads)
    places: Any = event.positions or (0, 0, 0, 0)
    total = 0
    for meter, quantity, place in zip(EVENT_METERS, used, places, strict=True):
        tiers = tariff.of(meter, series.class_)
        total += 0 if tiers is None else cost(tiers, quantity, place)
    return total
