"""Queries over stored responses. Which tenant's rows they touch is the session's matter;
`only_by` leaves those that one key or person has made, None all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from sqlalchemy import ColumnElement, CursorResult, delete, func, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.locks import lock
from tenora_platform.receipts.tables import StoredResponseRow


@dataclass(frozen=True)
class Row:
    """A response to be stored; how long, its tenant's settings say."""

    tenant_id: str
    id: str
    made_by: str
    previous_id: str | None
    input: bytes
    response: bytes
    bytes: int


@dataclass(frozen=True)
class Most:
    """What one tenant may have stored."""

    responses: int
    bytes: int


@dataclass(frozen=True)
class Link:
    """A response of a conversation. `bytes_so_far`: of it and those behind it."""

    id: str
    previous_id: str | None
    made_by: str
    bytes_so_far: int


class FullError(Exception):
    """A tenant has as many as it may; the transaction is to be rolled back."""


# What tenant and plan say by now decides, not what they said when the request began; the setting's
# row is locked, so nothing is written behind the deletion of all. A second try finds its row.
_STORE = text(
    """
    insert into stored_responses
           (tenant_id, id, made_by, previous_id, input, response, bytes, created_at, expires_at)
    select tenant_settings.tenant_id, :id, :made_by, :previous_id, :input, :response, :bytes, now(),
           now() + stored_response_days * interval '1 day'
      from tenant_settings
      join tenants on tenants.id = tenant_settings.tenant_id
      join plans on plans.name = tenants.plan
     where tenant_settings.tenant_id = :tenant_id
       and stored_response_days is not null and plans.stored_responses
       for share of tenant_settings
    on conflict (tenant_id, id) do update set id = excluded.id
    """
)
_CHAIN = text(
    """
    with recursive chain as (
      select id, previous_id, made_by, bytes::bigint as bytes_so_far, 1 as turn
        from stored_responses
       where id = :id and expires_at > now()
      union all
      select before.id, before.previous_id, before.made_by,
             chain.bytes_so_far + before.bytes, chain.turn + 1
        from chain
        join stored_responses before on before.id = chain.previous_id
       where before.expires_at > now()
         and chain.turn < :turns_max and chain.bytes_so_far <= :bytes_max
    )
    select id, previous_id, made_by, bytes_so_far from chain order by turn
    """
)
_SHORTEN = text(
    "update stored_responses set expires_at = created_at + :days * interval '1 day'"
    " where expires_at > created_at + :days * interval '1 day'"
)


async def store(session: AsyncSession, row: Row, most: Most) -> Literal["off"] | None:
    """`off`: tenant or plan want none. Raises FullError."""
    await lock(session, f"stored_responses:{row.tenant_id}")  # to count those of others, too
    result = await session.execute(_STORE, asdict(row))
    assert isinstance(result, CursorResult)
    if not result.rowcount:
        return "off"
    counted = await session.execute(
        select(func.count(), func.coalesce(func.sum(StoredResponseRow.bytes), 0)).where(_is_good())
    )
    responses, size = counted.one()
    if responses > most.responses or size > most.bytes:
        raise FullError
    return None


async def response(session: AsyncSession, response_id: str, only_by: str | None) -> bytes | None:
    query = select(StoredResponseRow.response).where(*_one(response_id, only_by))
    found: bytes | None = await session.scalar(query)
    return found


async def input_of(session: AsyncSession, response_id: str, only_by: str | None) -> bytes | None:
    query = select(StoredResponseRow.input).where(*_one(response_id, only_by))
    found: bytes | None = await session.scalar(query)
    return found


async def chain(
    session: AsyncSession, response_id: str, turns_max: int, bytes_max: int
) -> list[Link]:
    """It and those that it goes on from, newest first, until one is not there or there are too
    many."""
    asked = {"id": response_id, "turns_max": turns_max, "bytes_max": bytes_max}
    return [Link(*row) for row in await session.execute(_CHAIN, asked)]


async def contents(session: AsyncSession, ids: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
    """Input and response, sealed, by id."""
    row = StoredResponseRow
    query = select(row.id, row.input, row.response).where(row.id.in_(ids))
    return {found.id: (found.input, found.response) for found in await session.execute(query)}


async def shorten(session: AsyncSession, days: int) -> None:
    """None is stored for longer than that."""
    await session.execute(_SHORTEN, {"days": days})


async def forget(session: AsyncSession, response_id: str, only_by: str | None) -> bool:
    """Whether there was one."""
    return bool(await _deleted(session, *_one(response_id, only_by)))


async def forget_all(session: AsyncSession, tenant_id: str) -> int:
    """How many there were."""
    return await _deleted(session, StoredResponseRow.tenant_id == tenant_id)


async def sweep(session: AsyncSession, limit: int) -> int:
    """Some of those whose time has passed; how many."""
    key = (StoredResponseRow.tenant_id, StoredResponseRow.id)
    over = select(*key).where(StoredResponseRow.expires_at <= func.now()).limit(limit)
    return await _deleted(session, tuple_(*key).in_(over))


def _is_good() -> ColumnElement[bool]:
    return StoredResponseRow.expires_at > func.now()


def _one(response_id: str, only_by: str | None) -> list[ColumnElement[bool]]:
    mine = [] if only_by is None else [StoredResponseRow.made_by == only_by]
    return [StoredResponseRow.id == response_id, _is_good(), *mine]


async def _deleted(session: AsyncSession, *conditions: ColumnElement[bool]) -> int:
    statement = delete(StoredResponseRow).where(*conditions)
    result = await session.execute(statement, execution_options={"synchronize_session": False})
    assert isinstance(result, CursorResult)
    return result.rowcount
