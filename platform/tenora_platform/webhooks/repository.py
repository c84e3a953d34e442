"""Queries of webhooks. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    Select,
    Text,
    and_,
    any_,
    delete,
    func,
    literal,
    not_,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.events.repository import OF_ERASED, is_erased
from tenora_platform.events.tables import EventRow
from tenora_platform.ids import new_id
from tenora_platform.live.noticing import note
from tenora_platform.locks import lock
from tenora_platform.webhooks.tables import (
    WebhookDeliveryRow,
    WebhookEndpointRow,
    WebhookQueueRow,
)


@dataclass(frozen=True, kw_only=True)
class DeliveriesWanted:
    """Which of an endpoint's; None: all. `asked`: a part of an event's type or id, of the
    delivery's own, or of what went wrong."""

    state: str | None = None
    type: str | None = None
    asked: str | None = None
    oldest_first: bool = False


async def get_endpoint(
    session: AsyncSession, endpoint_id: str, tenant_id: str | None, *, lock: bool = False
) -> WebhookEndpointRow | None:
    """Of this tenant (None: the operator's)."""
    query = select(WebhookEndpointRow).where(
        WebhookEndpointRow.id == endpoint_id,
        WebhookEndpointRow.tenant_id.is_not_distinct_from(tenant_id),
        WebhookEndpointRow.deleted_at.is_(None),
    )
    found: WebhookEndpointRow | None = await session.scalar(
        query.with_for_update(key_share=True) if lock else query
    )
    return found


async def leading_where_said(
    session: AsyncSession, tenant_id: str | None, makers: Collection[str]
) -> list[WebhookEndpointRow]:
    """The enabled endpoints whose address one of these actors gave last, locked."""
    said_by = func.coalesce(WebhookEndpointRow.url_by, WebhookEndpointRow.created_by)
    query = select(WebhookEndpointRow).where(
        WebhookEndpointRow.tenant_id.is_not_distinct_from(tenant_id),
        WebhookEndpointRow.deleted_at.is_(None),
        WebhookEndpointRow.disabled_at.is_(None),
        said_by.in_(makers),
    )
    return list(
        await session.scalars(query.order_by(WebhookEndpointRow.id).with_for_update(key_share=True))
    )


def endpoints_there(tenant_id: str | None) -> Select[Any]:
    """How many it has."""
    return select(func.count()).where(
        WebhookEndpointRow.tenant_id.is_not_distinct_from(tenant_id),
        WebhookEndpointRow.deleted_at.is_(None),
    )


async def list_endpoints(
    session: AsyncSession,
    tenant_id: str | None,
    *,
    asked: str | None = None,
    after: str | None = None,
    limit: int,
) -> list[WebhookEndpointRow]:
    """Newest first; one more than `limit`. `asked`: a part of URL, description or id."""
    columns = (WebhookEndpointRow.url, WebhookEndpointRow.description, WebhookEndpointRow.id)
    query = (
        select(WebhookEndpointRow)
        .where(
            WebhookEndpointRow.tenant_id.is_not_distinct_from(tenant_id),
            WebhookEndpointRow.deleted_at.is_(None),
            *paging.having(asked, *columns),
        )
        .order_by(WebhookEndpointRow.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(WebhookEndpointRow.id < after)
    return list(await session.scalars(query))


async def list_deliveries(
    session: AsyncSession,
    endpoint_id: str,
    *,
    wanted: DeliveriesWanted,
    after: str | None,
    limit: int,
) -> list[tuple[WebhookDeliveryRow, str]]:
    """With the event's type; by time, one more than `limit`."""
    by_id = WebhookDeliveryRow.id
    query = (
        select(WebhookDeliveryRow, EventRow.type)
        .join(EventRow, EventRow.id == WebhookDeliveryRow.event_id)
        .where(
            WebhookDeliveryRow.endpoint_id == endpoint_id,
            *paging.having(
                wanted.asked,
                EventRow.type,
                by_id,
                WebhookDeliveryRow.event_id,
                WebhookDeliveryRow.last_error,
            ),
        )
        .order_by(by_id.asc() if wanted.oldest_first else by_id.desc())
        .limit(limit + 1)
    )
    if wanted.state is not None:
        query = query.where(WebhookDeliveryRow.state == wanted.state)
    if wanted.type is not None:
        query = query.where(EventRow.type == wanted.type)
    if after is not None:
        query = query.where(by_id > after if wanted.oldest_first else by_id < after)
    return [(row, type_) for row, type_ in await session.execute(query)]


async def get_delivery(
    session: AsyncSession, endpoint_id: str, delivery_id: str
) -> tuple[WebhookDeliveryRow, str] | None:
    """Locked, with the event's type."""
    query = (
        select(WebhookDeliveryRow, EventRow.type)
        .join(EventRow, EventRow.id == WebhookDeliveryRow.event_id)
        .where(WebhookDeliveryRow.id == delivery_id, WebhookDeliveryRow.endpoint_id == endpoint_id)
        .with_for_update(of=WebhookDeliveryRow, key_share=True)
    )
    found = (await session.execute(query)).first()
    return None if found is None else (found[0], found[1])


async def fan_out(session: AsyncSession, limit: int) -> int:
    """Make deliveries of up to `limit` events that have none yet, for each endpoint that was there
    before and wants their type; how many events. Several may do it at once. Of a tenant that has
    been erased only the operator is told, and only what its books need."""
    taken = (
        select(WebhookQueueRow.event_id)
        .order_by(WebhookQueueRow.event_id)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    )
    ids = list(await session.scalars(taken))
    if not ids:
        return 0
    wanted = (
        select(EventRow.id, WebhookEndpointRow.id, WebhookEndpointRow.tenant_id)
        .join(
            WebhookEndpointRow,
            or_(
                WebhookEndpointRow.tenant_id == EventRow.tenant_id,
                WebhookEndpointRow.tenant_id.is_(None),
            ),
        )
        .where(
            EventRow.id == any_(literal(ids, ARRAY(Text))),
            WebhookEndpointRow.deleted_at.is_(None),
            WebhookEndpointRow.disabled_at.is_(None),
            WebhookEndpointRow.created_at <= EventRow.created_at,
            or_(
                WebhookEndpointRow.types.is_(None),
                EventRow.type == any_(WebhookEndpointRow.types),
            ),
            or_(
                not_(is_erased()),
                and_(WebhookEndpointRow.tenant_id.is_(None), EventRow.type.in_(list(OF_ERASED))),
            ),
        )
    )
    rows = [
        {"id": new_id("delivery"), "event_id": event, "endpoint_id": of, "tenant_id": tenant}
        for event, of, tenant in await session.execute(wanted)
    ]
    if rows:
        await session.execute(insert(WebhookDeliveryRow).on_conflict_do_nothing(), rows)
        tell_owners(session, (row["tenant_id"] for row in rows))
    await session.execute(delete(WebhookQueueRow).where(WebhookQueueRow.event_id.in_(ids)))
    return len(ids)


def tell_owners(session: AsyncSession, tenant_ids: Iterable[str | None]) -> None:
    """Who looks at deliveries sees them move; None is the operator's, who is always told."""
    note(session, ["webhooks"], {each for each in tenant_ids if each is not None})


@dataclass(frozen=True, slots=True)
class Claim:
    """How much a worker takes: `limit` deliveries, and of an endpoint and a tenant no more than
    these, with what any worker has in flight of theirs."""

    of_endpoint: int
    of_tenant: int
    limit: int
    lease_s: float


async def any_waits(session: AsyncSession) -> bool:
    """Whether a delivery waits, for its time or for its turn."""
    return bool(await session.scalar(_ANY_WAITS))


_ANY_WAITS = text("select exists (select 1 from webhook_deliveries where state = 'waiting')")
_ANY_DUE = text(
    "select exists (select 1 from webhook_deliveries where state = 'waiting' and next_at <= now())"
)
# Tenants in turn: everybody's first place comes before anybody's second, and what is in flight has
# its tenant's first places. Endpoints are walked one by one, by the index, so that what this costs
# does not grow with one of them's backlog.
_CLAIM = text(
    """
    WITH RECURSIVE endpoints AS (
      (SELECT endpoint_id FROM webhook_deliveries
        WHERE state = 'waiting' ORDER BY endpoint_id LIMIT 1)
      UNION ALL
      SELECT (SELECT d.endpoint_id FROM webhook_deliveries d
               WHERE d.state = 'waiting' AND d.endpoint_id > endpoints.endpoint_id
               ORDER BY d.endpoint_id LIMIT 1)
        FROM endpoints WHERE endpoints.endpoint_id IS NOT NULL
    ), in_flight AS MATERIALIZED (
      SELECT endpoint_id, tenant_id FROM webhook_deliveries WHERE claimed_until > now()
    ), due AS (
      SELECT found.*,
             row_number() OVER (PARTITION BY found.endpoint_id ORDER BY found.next_at, found.id)
             + (SELECT count(*) FROM in_flight f WHERE f.endpoint_id = found.endpoint_id) AS place
        FROM endpoints, LATERAL (
          SELECT d.id, d.endpoint_id, d.tenant_id, d.next_at FROM webhook_deliveries d
           WHERE d.endpoint_id = endpoints.endpoint_id AND d.state = 'waiting'
             AND d.next_at <= now() AND (d.claimed_until IS NULL OR d.claimed_until <= now())
           ORDER BY d.next_at LIMIT :of_endpoint) AS found
    ), ranked AS (
      SELECT due.id,
             row_number() OVER (PARTITION BY due.tenant_id ORDER BY due.place, next_at, due.id)
             + (SELECT count(*) FROM in_flight f
                 WHERE f.tenant_id IS NOT DISTINCT FROM due.tenant_id) AS place
        FROM due WHERE due.place <= :of_endpoint
    ), claimed AS (
      SELECT d.id FROM webhook_deliveries d JOIN ranked USING (id)
       WHERE ranked.place <= :of_tenant AND d.state = 'waiting' AND d.next_at <= now()
       ORDER BY ranked.place, d.next_at LIMIT :limit FOR NO KEY UPDATE OF d SKIP LOCKED
    )
    UPDATE webhook_deliveries d
       SET claimed_until = now() + make_interval(secs => :lease_s),
           next_at = now() + make_interval(secs => :lease_s), attempts = attempts + 1
      FROM claimed WHERE d.id = claimed.id
    RETURNING d.id
    """
)


async def claim(session: AsyncSession, wanted: Claim) -> list[str]:
    """Deliveries that are due, for whoever asked alone and for so long; each counts as tried."""
    if not await session.scalar(_ANY_DUE):
        return []
    await lock(session, "webhooks")  # two workers would both find the last place free
    return list((await session.execute(_CLAIM, asdict(wanted))).scalars())


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be sent: one delivery, with its endpoint and its event, and whether the event's
    tenant has been erased meanwhile."""

    row: WebhookDeliveryRow
    endpoint: WebhookEndpointRow
    event: EventRow
    is_erased: bool


async def to_send(session: AsyncSession, ids: Sequence[str]) -> list[Due]:
    query = (
        select(WebhookDeliveryRow, WebhookEndpointRow, EventRow, is_erased())
        .join(WebhookEndpointRow, WebhookEndpointRow.id == WebhookDeliveryRow.endpoint_id)
        .join(EventRow, EventRow.id == WebhookDeliveryRow.event_id)
        .where(WebhookDeliveryRow.id == any_(literal(list(ids), ARRAY(Text))))
    )
    return [Due(*found) for found in await session.execute(query)]


async def settle(session: AsyncSession, row: WebhookDeliveryRow, **values: object) -> None:
    """What became of an attempt, unless it was claimed anew since (its lease had ended). Where
    somebody wants it sent again meanwhile, only its place is free."""
    await session.execute(
        update(WebhookDeliveryRow)
        .where(
            WebhookDeliveryRow.id == row.id, WebhookDeliveryRow.claimed_until == row.claimed_until
        )
        .values(claimed_until=None)
    )
    await session.execute(
        update(WebhookDeliveryRow)
        .where(
            WebhookDeliveryRow.id == row.id,
            WebhookDeliveryRow.attempts == row.attempts,
            WebhookDeliveryRow.state == "waiting",
        )
        .values(**values)
    )
    tell_owners(session, [row.tenant_id])


async def disable(session: AsyncSession, endpoint_id: str, now: datetime, reason: str) -> None:
    await session.execute(
        update(WebhookEndpointRow)
        .where(WebhookEndpointRow.id == endpoint_id, WebhookEndpointRow.disabled_at.is_(None))
        .values(disabled_at=now, disabled_reason=reason)
    )


async def bury(session: AsyncSession, endpoint_id: str, reason: str) -> None:
    """Nothing more of what waits is sent to it."""
    await session.execute(
        update(WebhookDeliveryRow)
        .where(WebhookDeliveryRow.endpoint_id == endpoint_id, WebhookDeliveryRow.state == "waiting")
        .values(state="dead", last_error=func.coalesce(WebhookDeliveryRow.last_error, reason))
    )


async def revive(session: AsyncSession, endpoint_id: str, limit: int) -> int:
    """Its dead letters are sent again, the oldest first; how many."""
    oldest = (
        select(WebhookDeliveryRow.id)
        .where(WebhookDeliveryRow.endpoint_id == endpoint_id, WebhookDeliveryRow.state == "dead")
        .order_by(WebhookDeliveryRow.id)
        .limit(limit)
    )
    found = await session.execute(
        update(WebhookDeliveryRow)
        .where(WebhookDeliveryRow.id.in_(oldest))
        .values(state="waiting", attempts=0, next_at=func.now())
        .returning(WebhookDeliveryRow.id)
    )
    return len(found.all())
