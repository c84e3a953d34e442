"""What shadows answered, as the tenant compares it, and how much of it is kept. Running them is
inference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Double, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import TenantContext
from tenora_platform.errors import NotFoundError
from tenora_platform.receipts.tables import KeptContentsRow
from tenora_platform.registry import repository as registry
from tenora_platform.registry.schemas import Shadow
from tenora_platform.registry.tables import AdapterAliasRow
from tenora_platform.rollouts import repository
from tenora_platform.rollouts.aliases import unknown_alias
from tenora_platform.rollouts.schemas import (
    ComparedAnswer,
    ShadowAnswer,
    ShadowMedians,
    ShadowReport,
    ShadowSummary,
)
from tenora_platform.rollouts.tables import ShadowAnswerRow
from tenora_platform.state import AppState

KEPT_OF_ALIAS = 1000
KEPT_DAYS = 30

_SWEEP = text(
    """
    delete from shadow_answers
     where at < now() - :days * interval '1 day'
        or id in (select id from (
             select id, row_number() over (
               partition by tenant_id, adapter_id, alias order by id desc) as place
               from shadow_answers) as placed
            where place > :most)
    """
)


async def sweep(session: AsyncSession) -> None:
    """For the operator: of each alias only the newest stay, and none for longer than a month."""
    await session.execute(_SWEEP, {"days": KEPT_DAYS, "most": KEPT_OF_ALIAS})


class Shadows:
    """Of one tenant."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant

    async def report(self, name: str, alias: str, *, after: str | None, limit: int) -> ShadowReport:
        """Raises NotFoundError."""
        tenant_id = self._tenant.tenant_id
        async with self._state.opening.turn(tenant_id):
            async with self._state.db.tenant_session(tenant_id) as session:
                there, rows, kept, summary = await self._found(session, name, alias, after, limit)
            texts = await self._state.opening.work(partial(self._texts, kept))
        data = [_view(row, texts) for row in rows[:limit]]
        return ShadowReport(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=len(rows) > limit,
            name=name,
            alias=alias,
            shadow=Shadow(**there.shadow) if there is not None and there.shadow else None,
            summary=summary,
        )

    async def _found(
        self, session: AsyncSession, name: str, alias: str, after: str | None, limit: int
    ) -> tuple[
        AdapterAliasRow | None,
        Sequence[ShadowAnswerRow],
        Sequence[KeptContentsRow],
        list[ShadowSummary],
    ]:
        """The alias, a page of answers and one more, what is kept of them, and the summary of all.
        Raises NotFoundError."""
        adapter = await registry.adapter_by_name(session, self._tenant.tenant_id, name)
        if adapter is None:
            raise NotFoundError(f"There is no adapter named {name[:80]!r}.", param="name")
        there = await repository.alias_of(session, adapter.id, alias)
        of = (ShadowAnswerRow.adapter_id == adapter.id, ShadowAnswerRow.alias == alias)
        rows = await _page(session, of, after, limit)
        if there is None and not rows:
            raise unknown_alias(name, alias)
        ids = [id_ for row in rows[:limit] for id_ in (row.id, row.request_id)]
        query = select(KeptContentsRow).where(
            KeptContentsRow.request_id.in_(ids), KeptContentsRow.expires_at > func.now()
        )
        kept = (await session.scalars(query)).all()
        return there, rows, kept, await _summary(session, of)

    def _texts(self, kept: Sequence[KeptContentsRow]) -> Mapping[str, list[str]]:
        """Of the requests whose contents are kept, by id."""
        found: dict[str, list[str]] = {}
        for each in kept:
            contents = self._state.contents.seal.open(
                self._tenant.tenant_id, each.request_id, each.sealed
            )
            if contents is not None:
                found[each.request_id] = [choice["text"] for choice in contents["choices"]]
        return found


async def _page(
    session: AsyncSession, of: Sequence[ColumnElement[bool]], after: str | None, limit: int
) -> Sequence[ShadowAnswerRow]:
    query = select(ShadowAnswerRow).where(*of).order_by(ShadowAnswerRow.id.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(ShadowAnswerRow.id < after)
    return (await session.scalars(query)).all()


async def _summary(session: AsyncSession, of: Sequence[ColumnElement[bool]]) -> list[ShadowSummary]:
    real, shadow, greedy = (
        ShadowAnswerRow.answer,
        ShadowAnswerRow.shadow_answer,
        ShadowAnswerRow.greedy,
    )
    equal = real["digest"].astext == shadow["digest"].astext

    def median(side: Any, name: str) -> ColumnElement[Any]:
        number = side[name].astext.cast(Double)
        return func.percentile_cont(0.5).within_group(number)

    query = (
        select(
            ShadowAnswerRow.shadow_version,
            func.count(),
            func.count().filter(ShadowAnswerRow.error.is_not(None)),
            func.count().filter(equal),
            func.count().filter(greedy),
            func.count().filter(greedy, equal),
            median(real, "first_token_ms"),
            median(real, "total_ms"),
            median(shadow, "first_token_ms"),
            median(shadow, "total_ms"),
        )
        .where(*of)
        .group_by(ShadowAnswerRow.shadow_version)
        .order_by(ShadowAnswerRow.shadow_version.desc())
    )
    return [
        ShadowSummary(
            version=row[0],
            compared=row[1],
            failed=row[2],
            equal=row[3],
            greedy=row[4],
            greedy_equal=row[5],
            answer=ShadowMedians(first_token_ms=row[6], total_ms=row[7]),
            shadow=ShadowMedians(first_token_ms=row[8], total_ms=row[9]),
        )
        for row in await session.execute(query)
    ]


def _view(row: ShadowAnswerRow, texts: Mapping[str, list[str]]) -> ShadowAnswer:
    def side(id_: str, version: int, told: dict[str, Any]) -> ComparedAnswer:
        return ComparedAnswer(request_id=id_, version=version, choices=texts.get(id_), **told)

    shadow = row.shadow_answer
    return ShadowAnswer(
        id=row.id,
        greedy=row.greedy,
        equal=None if shadow is None else shadow["digest"] == row.answer["digest"],
        answer=side(row.request_id, row.version, row.answer),
        shadow=None if shadow is None else side(row.id, row.shadow_version, shadow),
        error=row.error,
        at=row.at,
    )
