"""Queries of evaluations. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Integer, and_, delete, func, or_, select, text, true, update, values
from sqlalchemy import Text as SqlText
from sqlalchemy import column as sql_column
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.evaluations.schemas import OPEN
from tenora_platform.evaluations.tables import (
    EvaluationAnswerRow,
    EvaluationItemRow,
    EvaluationRow,
)


class Ask(NamedTuple):
    """An item that a subject has not answered yet, and what is known of it already."""

    no: int
    item: dict[str, Any]
    subject: str
    known: EvaluationAnswerRow | None

    @property
    def was_cut(self) -> bool:
        """It was asked before, and a crash came between."""
        return self.known is not None and self.known.asking


_ITEMS_AT_ONCE = 50
_ADD_ITEMS = text(
    "INSERT INTO evaluation_items (evaluation_id, no, tenant_id, item) "
    "SELECT :evaluation, :before + place, :tenant, CAST(item AS jsonb) "
    "FROM unnest(CAST(:items AS text[])) WITH ORDINALITY AS given (item, place)"
)


async def page(
    session: AsyncSession, tenant_id: str, after: str | None, limit: int
) -> list[EvaluationRow]:
    """Newest first; one more than `limit`."""
    query = (
        select(EvaluationRow)
        .where(EvaluationRow.tenant_id == tenant_id)
        .order_by(EvaluationRow.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(EvaluationRow.id < after)
    return list(await session.scalars(query))


async def add_items(
    session: AsyncSession, evaluation_id: str, tenant_id: str, items: Sequence[str]
) -> None:
    """Store the items, JSON texts in their order, some at a time: others are served between."""
    for begin in range(0, len(items), _ITEMS_AT_ONCE):
        values = {
            "evaluation": evaluation_id,
            "tenant": tenant_id,
            "before": begin - 1,
            "items": items[begin : begin + _ITEMS_AT_ONCE],
        }
        await session.execute(_ADD_ITEMS, values)


async def count_open(session: AsyncSession, tenant_id: str) -> int:
    query = select(func.count()).where(
        EvaluationRow.tenant_id == tenant_id, EvaluationRow.state.in_(OPEN)
    )
    return int(await session.scalar(query) or 0)


async def waiting(session: AsyncSession, now: datetime, limit: int) -> list[EvaluationRow]:
    """Of all tenants in turn, who was served longest ago first (one who never was, counts from the
    first that waits): each one's first, then each one's second. For the operator's session."""
    row = EvaluationRow
    turn = func.coalesce(
        func.max(row.served_at), func.min(row.created_at).filter(row.state.in_(OPEN))
    )
    turns = (
        select(row.tenant_id, turn.label("turn"))
        .where(row.tenant_id.in_(select(row.tenant_id).where(row.state.in_(OPEN))))
        .group_by(row.tenant_id)
        .subquery()
    )
    order = (row.served_at.asc().nulls_first(), row.id)
    place = func.row_number().over(partition_by=row.tenant_id, order_by=order)
    query = (
        select(row)
        .join(turns, turns.c.tenant_id == row.tenant_id)
        .where(row.state.in_(OPEN), or_(row.not_before.is_(None), row.not_before <= now))
        .order_by(place, turns.c.turn, row.id)
        .limit(limit)
    )
    return list(await session.scalars(query))


async def any_open(session: AsyncSession) -> bool:
    """Whether an evaluation of any tenant is, also if its time has not come."""
    query = select(EvaluationRow.id).where(EvaluationRow.state.in_(OPEN)).limit(1)
    return await session.scalar(query) is not None


async def is_open(session: AsyncSession, evaluation_id: str) -> bool:
    query = select(EvaluationRow.state).where(EvaluationRow.id == evaluation_id)
    return await session.scalar(query) in OPEN


async def move(
    session: AsyncSession, evaluation_id: str, when: Sequence[str], **values_: Any
) -> bool:
    """Whether it was in one of the states."""
    statement = (
        update(EvaluationRow)
        .where(EvaluationRow.id == evaluation_id, EvaluationRow.state.in_(when))
        .values(**values_)
        .returning(EvaluationRow.id)
    )
    return await session.scalar(statement) is not None


async def remove(session: AsyncSession, evaluation_ids: Sequence[str]) -> None:
    """With all that was asked and answered."""
    for table in (EvaluationAnswerRow, EvaluationItemRow):
        await session.execute(delete(table).where(table.evaluation_id.in_(evaluation_ids)))
    await session.execute(delete(EvaluationRow).where(EvaluationRow.id.in_(evaluation_ids)))


async def ended_before(session: AsyncSession, moment: datetime, limit: int) -> Sequence[str]:
    """The ids; oldest first."""
    query = (
        select(EvaluationRow.id)
        .where(EvaluationRow.state.not_in(OPEN), EvaluationRow.ended_at < moment)
        .order_by(EvaluationRow.ended_at)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def unanswered(session: AsyncSession, row: EvaluationRow, limit: int) -> list[Ask]:
    """In the items' order, each of all subjects: their answers come side by side."""
    item, answer = EvaluationItemRow, EvaluationAnswerRow
    names = [(place, each["name"]) for place, each in enumerate(row.subjects)]
    subjects = values(
        sql_column("place", Integer), sql_column("name", SqlText), name="subjects"
    ).data(names)
    query = (
        select(item.no, item.item, subjects.c.name, answer)
        .select_from(item)
        .join(subjects, true())
        .outerjoin(
            answer,
            and_(
                answer.evaluation_id == item.evaluation_id,
                answer.no == item.no,
                answer.subject == subjects.c.name,
            ),
        )
        .where(item.evaluation_id == row.id, answer.answered_at.is_(None))
        .order_by(item.no, subjects.c.place)
        .limit(limit)
    )
    return [Ask(*found) for found in await session.execute(query)]


async def put_answer(session: AsyncSession, row: EvaluationRow, ask: Ask, **answer: Any) -> None:
    """What is known of it by now."""
    statement = insert(EvaluationAnswerRow).values(
        evaluation_id=row.id, no=ask.no, subject=ask.subject, tenant_id=row.tenant_id, **answer
    )
    await session.execute(
        statement.on_conflict_do_update(
            index_elements=["evaluation_id", "no", "subject"], set_=answer
        )
    )


class Sums(NamedTuple):
    """Of all answers of one subject of one evaluation."""

    answered: int
    errors: int
    passed: int
    mean: float | None
    deviation: float | None
    scored: int
    prompt_tokens: int
    output_tokens: int


async def sums(session: AsyncSession, evaluation_ids: Sequence[str]) -> dict[tuple[str, str], Sums]:
    """By evaluation and subject."""
    answer = EvaluationAnswerRow
    query = (
        select(
            answer.evaluation_id,
            answer.subject,
            func.count(),
            func.count(answer.error),
            func.count().filter(answer.score == 1.0),
            func.avg(answer.score),
            func.stddev_samp(answer.score),
            func.count(answer.score),
            func.coalesce(func.sum(answer.prompt_tokens), 0),
            func.coalesce(func.sum(answer.output_tokens), 0),
        )
        .where(answer.evaluation_id.in_(evaluation_ids), answer.answered_at.is_not(None))
        .group_by(answer.evaluation_id, answer.subject)
    )
    return {(row[0], row[1]): Sums(*row[2:]) for row in await session.execute(query)}


async def items_page(
    session: AsyncSession, evaluation_id: str, after: int, limit: int
) -> list[EvaluationItemRow]:
    query = (
        select(EvaluationItemRow)
        .where(EvaluationItemRow.evaluation_id == evaluation_id, EvaluationItemRow.no > after)
        .order_by(EvaluationItemRow.no)
        .limit(limit + 1)
    )
    return list(await session.scalars(query))


async def answers_of(
    session: AsyncSession, evaluation_id: str, first: int, last: int
) -> list[EvaluationAnswerRow]:
    query = select(EvaluationAnswerRow).where(
        EvaluationAnswerRow.evaluation_id == evaluation_id,
        EvaluationAnswerRow.no.between(first, last),
        EvaluationAnswerRow.answered_at.is_not(None),
    )
    return list(await session.scalars(query))
