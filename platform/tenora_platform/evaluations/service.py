"""What a tenant may do with evaluations: ask for one, look, cancel, delete."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.printable import brief
from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.evaluations import repository, schemas
from tenora_platform.evaluations.intervals import of_mean, wilson
from tenora_platform.evaluations.repository import Sums
from tenora_platform.evaluations.schemas import OPEN, EvaluationCreate, Item, Subject, items_of
from tenora_platform.evaluations.scorer import schema_text
from tenora_platform.evaluations.scoring import SchemaError
from tenora_platform.evaluations.tables import (
    EvaluationAnswerRow,
    EvaluationItemRow,
    EvaluationRow,
)
from tenora_platform.ids import new_id
from tenora_platform.locks import lock, try_lock
from tenora_platform.registry import repository as registry
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.state import AppState
from tenora_platform.tenants.key_terms import require_model
from tenora_platform.texts import odd_in

OPEN_MAX = 8  # evaluations of one tenant that are not finished
SCHEMA_MAX = 16 * 1024
"""Characters of one schema, as JSON; it is kept with each item."""


class Evaluations:
    """The evaluations of one tenant."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant

    async def create(self, body: EvaluationCreate) -> schemas.Evaluation:
        """One of a tenant's at a time. Raises NotFoundError, BadRequestError, ConflictError,
        ForbiddenError, RateLimitedError."""
        async with self._state.creating.turn(self._tenant.tenant_id):
            return await self._create(body)

    async def _create(self, body: EvaluationCreate) -> schemas.Evaluation:
        async with self._session() as session:  # before any work is spent on what it asks
            await self._subjects(session, body)
            await self._refuse_many(session)
        items = await self._items(body)
        async with self._session() as session:
            subjects = await self._subjects(session, body)
            await lock(session, f"evaluations:{self._tenant.tenant_id}")
            await self._refuse_many(session)
            row = EvaluationRow(
                id=new_id("eval"),
                tenant_id=self._tenant.tenant_id,
                key_id=self._tenant.key_id,
                adapter=body.adapter,
                subjects=[subject.model_dump() for subject in subjects],
                scoring=body.scoring,
                max_tokens=body.max_tokens,
                items=len(items),
                state="queued",
                created_at=datetime.now(UTC),
            )
            session.add(row)
            await session.flush()
            await repository.add_items(session, row.id, row.tenant_id, items)
            after = {"items": row.items, "versions": body.versions, "scoring": row.scoring}
            await self._audit(session, "evaluation.create", row, after)
            return _view(row, {})

    async def _refuse_many(self, session: AsyncSession) -> None:
        if await repository.count_open(session, self._tenant.tenant_id) >= OPEN_MAX:
            raise ConflictError(
                f"{OPEN_MAX} evaluations are still unfinished, which is the maximum. "
                "Cancel one, or wait until one has finished."
            )

    async def _items(self, body: EvaluationCreate) -> list[str]:
        """As they are kept, in JSON. Raises BadRequestError for what their scoring lacks."""
        state, tenant_id = self._state, self._tenant.tenant_id
        if len(schema_text(body.schema_)) > SCHEMA_MAX:
            raise BadRequestError(f"schema has more than {SCHEMA_MAX} characters.", param="schema")
        items, by_text = await state.long_texts.run(tenant_id, partial(_all_checked, body))
        if not by_text:
            return items
        try:
            found = await state.scorer.check(tenant_id, list(by_text))
        except SchemaError as error:
            raise BadRequestError(
                f"The schemas of the items cannot be used: {error}.",
                param="items",
                code="invalid_value",
            ) from error
        if found is not None:
            place, why = found
            raise _wrong(list(by_text.values())[place], f"has a schema that cannot be used: {why}")
        return items

    async def _subjects(self, session: AsyncSession, body: EvaluationCreate) -> list[Subject]:
        if len(set(body.versions)) != len(body.versions):
            raise BadRequestError("versions lists a version twice.", param="versions")
        adapter = await registry.adapter_by_name(session, self._tenant.tenant_id, body.adapter)
        if adapter is None:
            raise NotFoundError(
                f"There is no adapter named {body.adapter[:80]!r}.", param="adapter"
            )
        subjects = []
        for number in body.versions:
            if number == "base":
                require_model(self._tenant, self._state.engine.model.id)
                subjects.append(Subject(name="base"))
                continue
            require_model(self._tenant, f"{body.adapter}@{number}")
            version = await registry.version_of(session, adapter.id, number)
            if version is None or version.state not in SERVABLE:
                raise BadRequestError(
                    f"{body.adapter} has no active version {number}.",
                    param="versions",
                    code="invalid_value",
                )
            subjects.append(
                Subject(
                    name=str(number),
                    version_id=version.id,
                    adapter_id=adapter.id,
                    number=number,
                    digest=version.digest or "",
                    rank=version.rank or 0,
                )
            )
        return subjects

    async def page(self, after: str | None, limit: int) -> schemas.EvaluationPage:
        async with self._session() as session:
            rows = await repository.page(session, self._tenant.tenant_id, after, limit)
            found = await repository.sums(session, [row.id for row in rows])
        return schemas.EvaluationPage.of([_view(row, found) for row in rows], limit)

    async def get(self, evaluation_id: str) -> schemas.Evaluation:
        """Raises NotFoundError."""
        async with self._session() as session:
            row = await self._require(session, evaluation_id)
            return _view(row, await repository.sums(session, [row.id]))

    async def items(self, evaluation_id: str, after: int, limit: int) -> schemas.ItemPage:
        """Raises NotFoundError."""
        async with self._session() as session:
            row = await self._require(session, evaluation_id)
            items = await repository.items_page(session, row.id, after, limit)
            shown = items[:limit]
            answers: list[EvaluationAnswerRow] = []
            if shown:
                answers = await repository.answers_of(session, row.id, shown[0].no, shown[-1].no)
        by_item: dict[int, dict[str, EvaluationAnswerRow]] = defaultdict(dict)
        for answer in answers:
            by_item[answer.no][answer.subject] = answer
        names = [subject["name"] for subject in row.subjects]
        return schemas.ItemPage(
            data=[_item_view(item, by_item[item.no], names) for item in shown],
            has_more=len(items) > limit,
        )

    async def cancel(self, evaluation_id: str) -> schemas.Evaluation:
        """What is answered stays. Raises NotFoundError, ConflictError where it has ended."""
        async with self._session() as session:
            row = await self._require(session, evaluation_id)
            now = datetime.now(UTC)
            if not await repository.move(session, row.id, OPEN, state="cancelled", ended_at=now):
                raise ConflictError(f"The evaluation is already {row.state}.")
            await session.refresh(row)
            await self._audit(session, "evaluation.cancel", row, {"state": "cancelled"})
            return _view(row, await repository.sums(session, [row.id]))

    async def delete(self, evaluation_id: str) -> None:
        """With its items and answers; what they cost stays on the books. Raises NotFoundError,
        ConflictError where it has not ended."""
        async with self._session() as session:
            row = await self._require(session, evaluation_id)
            if row.state in OPEN:
                raise ConflictError(
                    f"The evaluation is {row.state}. Cancel it before you delete it."
                )
            if not await try_lock(session, f"evaluation:{row.id}"):
                raise ConflictError(
                    "Some answers requested before the cancellation are still in flight; "
                    "try again in a moment."
                )
            await repository.remove(session, [row.id])
            await self._audit(session, "evaluation.delete", row, None)

    async def _require(self, session: AsyncSession, evaluation_id: str) -> EvaluationRow:
        row = await session.get(EvaluationRow, evaluation_id)
        if row is None:
            raise NotFoundError(f"There is no evaluation {evaluation_id[:80]!r}.")
        return row

    async def _audit(
        self, session: AsyncSession, action: str, row: EvaluationRow, after: dict[str, Any] | None
    ) -> None:
        await self._state.audit.append(
            session,
            actor=self._tenant.actor,
            action=action,
            target=row.id,
            tenant_id=row.tenant_id,
            after=after,
            details={"name": row.adapter},
        )

    def _session(self) -> AbstractAsyncContextManager[AsyncSession]:
        return self._state.db.tenant_session(self._tenant.tenant_id)


def _all_checked(body: EvaluationCreate) -> tuple[list[str], dict[str, int]]:
    """All items in JSON, and their schemas that answers are held against, each with its first
    item."""
    items: list[str] = []
    by_text: dict[str, int] = {}
    for no, made in enumerate(items_of(body)):
        item = _checked(body, made, no)
        items.append(json.dumps(item, ensure_ascii=False))
        if body.scoring == "json_schema":
            text = schema_text(item["schema"])
            if len(text) > SCHEMA_MAX:
                raise _wrong(no, f"has a schema of more than {SCHEMA_MAX} characters")
            by_text.setdefault(text, no)
    return items, by_text


def _checked(body: EvaluationCreate, item: Item, no: int) -> dict[str, Any]:
    """The item as it is kept. Raises BadRequestError for what its scoring lacks."""

    wrong = partial(_wrong, no)
    if (item.prompt is None) == (item.messages is None):
        raise wrong("needs either prompt or messages")
    if body.scoring == "json_schema":
        schema = item.schema_ if item.schema_ is not None else body.schema_
        if schema is None:
            raise wrong("has no schema, and the evaluation has no schema for all items")
        item = item.model_copy(update={"schema_": schema})
    elif item.expected is None:
        raise wrong(f"has no expected answer, which scoring {body.scoring} needs")
    if body.scoring == "choice" and item.expected not in (item.choices or ()):
        raise wrong("needs choices that include the expected answer")
    kept = item.model_dump(by_alias=True, exclude_none=True)
    if (odd := odd_in(kept, nul=True)) is not None:
        raise wrong(f"cannot be kept: {brief(odd.place)} {odd.reason}")
    if _is_too_deep(kept):
        raise wrong("is nested too deeply")
    return kept


def _wrong(no: int, what: str) -> BadRequestError:
    return BadRequestError(f"Item {no} {what}.", param=f"items[{no}]", code="invalid_value")


def _is_too_deep(item: dict[str, Any]) -> bool:
    try:
        json.dumps(item)
    except RecursionError:
        return True
    return False


def _view(row: EvaluationRow, sums: dict[tuple[str, str], Sums]) -> schemas.Evaluation:
    names = [subject["name"] for subject in row.subjects]
    return schemas.Evaluation(
        id=row.id,
        adapter=row.adapter,
        versions=[_version(name) for name in names],
        scoring=row.scoring,
        items=row.items,
        max_tokens=row.max_tokens,
        state=row.state,
        error=row.error,
        results=[result_of(row, name, sums.get((row.id, name))) for name in names],
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


def _version(name: str) -> Any:
    return name if name == "base" else int(name)


def result_of(row: EvaluationRow, name: str, found: Sums | None) -> schemas.Result:
    found = found or Sums(0, 0, 0, None, None, 0, 0, 0)
    score: float | None = None
    low: float | None = None
    high: float | None = None
    by_sum = row.scoring == "loglikelihood"
    if by_sum and found.mean is not None:
        score = found.mean
        if found.scored > 1:
            low, high = of_mean(found.mean, found.deviation or 0.0, found.scored)
    elif not by_sum and found.answered:
        score = found.passed / found.answered
        low, high = wilson(found.passed, found.answered)
    return schemas.Result(
        version=_version(name),
        answered=found.answered,
        errors=found.errors,
        passed=None if by_sum else found.passed,
        score=score,
        low=low,
        high=high,
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
    )


def _item_view(
    item: EvaluationItemRow, answers: dict[str, EvaluationAnswerRow], names: Sequence[str]
) -> schemas.ItemView:
    return schemas.ItemView(
        no=item.no,
        item=item.item,
        answers=[
            schemas.ItemAnswer(
                version=_version(name),
                answer=answers[name].answer,
                score=answers[name].score,
                error=answers[name].error,
                request_ids=answers[name].request_ids,
            )
            for name in names
            if name in answers
        ],
    )
