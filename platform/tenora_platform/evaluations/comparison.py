"""What a version of an adapter has scored beside those before it, for who decides by it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.evaluations import repository
from tenora_platform.evaluations.service import result_of
from tenora_platform.evaluations.tables import EvaluationRow


class Compared(NamedTuple):
    """Scores of one evaluation: the version's, and the best of those before it."""

    evaluation_id: str
    version: float
    before: float


async def compared(
    session: AsyncSession, tenant_id: str, adapter: str, version: int, before: Collection[int]
) -> Compared | None:
    """By the newest evaluation of this adapter (its name) that has ended and asked the version and
    one of those before it the same items."""
    query = (
        select(EvaluationRow)
        .where(
            EvaluationRow.tenant_id == tenant_id,
            EvaluationRow.adapter == adapter,
            EvaluationRow.state == "completed",
            EvaluationRow.subjects.contains([{"number": version}]),
        )
        .order_by(EvaluationRow.ended_at.desc())
        .limit(_LOOKED_AT)
    )
    for row in await session.scalars(query):
        names = {each["name"] for each in row.subjects} & {str(number) for number in before}
        sums = await repository.sums(session, [row.id])
        scores = {
            name: result_of(row, name, sums.get((row.id, name))).score
            for name in (str(version), *names)
        }
        own = scores.pop(str(version))
        others = [score for score in scores.values() if score is not None]
        if own is not None and others:
            return Compared(row.id, own, max(others))
    return None


_LOOKED_AT = 20
