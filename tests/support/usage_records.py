"""Usage records as the engine makes them, with every field open to a test."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.events import UsageRecord
from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.usage.ids import event_of
from tenora_platform.usage.tables import UnratedEventRow, UsageEventRow


def usage_record(event_id: str, tenant_id: str, **changes: Any) -> UsageRecord:
    """A finished base-model sequence; `event_id` reads "<request id>:<index>"."""
    request_id, _, index = event_id.rpartition(":")
    values: dict[str, Any] = {
        "event_id": event_id,
        "request_id": request_id,
        "index": int(index),
        "tenant": tenant_id,
        "adapter_digest": None,
        "context": {
            "tenant_id": tenant_id,
            "api_key_id": "key_1",
            "adapter_version_id": "",
            "model": "fake-base",
            "plan": "standard",
        },
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
        "arrival_s": 1_900_000_000.0,
        "first_token_s": 1_900_000_000.5,
        "finished_s": 1_900_000_001.0,
        "queue_ms": 0.0,
        "adapter_load_ms": 0.0,
        "residency": None,
        "tier": "default",
        "finish_reason": "stop",
    }
    return UsageRecord(**(values | changes))


async def find_event(session: AsyncSession, event_id: str) -> UsageEventRow | None:
    """The event of a record that is called so."""
    return await session.get(UsageEventRow, event_of(event_id).key)


async def waits(session: AsyncSession, event_id: str) -> bool:
    """Whether it is marked as waiting for a price."""
    request, sequence = event_of(event_id).key
    query = select(UnratedEventRow).where(
        UnratedEventRow.request == request, UnratedEventRow.sequence == sequence
    )
    return await session.scalar(query) is not None


async def price_of(session: AsyncSession, event_id: str) -> str | None:
    """The id of the price version by which it was rated; None while it waits, "" if there was
    nothing to price. An event is rated, or marked as waiting, never both."""
    event = await find_event(session, event_id)
    assert event is not None
    assert (event.price_version_no is None) == await waits(session, event_id)
    if not event.price_version_no:
        return None if event.price_version_no is None else ""
    query = select(PriceVersionRow.id).where(PriceVersionRow.no == event.price_version_no)
    return str(await session.scalar(query))
