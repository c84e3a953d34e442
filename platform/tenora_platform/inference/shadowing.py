"""Shadow traffic: a copy of a request on another version, begun once the answer has been sent. Its
own answer is compared and never sent; it is billed as usage of the kind `shadow`, and takes
nothing of the limits that requests have."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from functools import partial

import structlog

from tenora_engine.errors import EngineError
from tenora_platform.budgets.service import FLEX
from tenora_platform.errors import ApiError, from_engine
from tenora_platform.ids import new_ulid
from tenora_platform.inference.answers import Answer
from tenora_platform.inference.session import InferenceSession
from tenora_platform.outages import first_line, log_failure
from tenora_platform.receipts.contents import Transcript
from tenora_platform.registry.resolver import ResolvedModel, ShadowTarget
from tenora_platform.rollouts.tables import ShadowAnswerRow

KIND = "shadow"
_log = structlog.get_logger(__name__)


def chosen(resolved: ResolvedModel) -> ShadowTarget | None:
    """On what this request runs once more, if it does."""
    target = resolved.shadow
    if target is None or target.adapter == resolved.adapter:
        return None
    return target if secrets.randbelow(100) < target.percent else None


async def follow(session: InferenceSession) -> None:
    """Begin the copy of what has been answered, if there is to be one and room for it."""
    target, answer = session.shadow, session.answer
    if target is not None and answer is not None and answer.ended_s is not None:
        work = partial(_run, session, target, answer)
        session.state.shadows.begin(session.tenant.tenant_id, work)


async def _run(session: InferenceSession, target: ShadowTarget, answer: Answer) -> str:
    """The outcome, for the metric."""
    state, tenant = session.state, session.tenant
    levels = await state.budgets.levels(tenant)
    if any(level.soft or level.reached for level in levels):
        return "budget"  # what is left is for requests
    found, error = Answer(), None
    copy = _copy_of(session, target, found)
    try:
        if session.prompt_for is not None and _asks_otherwise(session, target):
            own = await session.prompt_for(target.adapter)
            copy = dataclasses.replace(copy, prompts=[own])
        async with contextlib.aclosing(copy.pieces()) as pieces:
            async for _ in pieces:
                continue
    except (ApiError, EngineError) as failure:
        error = failure if isinstance(failure, ApiError) else from_engine(failure)
    except Exception as failure:  # a request would be answered 500
        log_failure(_log, "shadow failed", failure)
        error = ApiError(first_line(failure), code="internal_error")
    row = _row(session, copy, answer, found, error)
    async with state.db.tenant_session(tenant.tenant_id) as database:
        database.add(row)
    return "answered" if error is None else "failed"


def _asks_otherwise(session: InferenceSession, target: ShadowTarget) -> bool:
    """Whether one of the two has a chat template of its own."""
    adapter = session.resolved.adapter
    return target.adapter.has_chat_template or (adapter is not None and adapter.has_chat_template)


def _copy_of(session: InferenceSession, target: ShadowTarget, answer: Answer) -> InferenceSession:
    """The same request, on the other version, in the lowest class. Its alias is left out: it says
    nothing of how the alias does."""
    kept = session.transcript
    if kept is not None:
        kept = Transcript(kept.tenant_id, kept.endpoint, kept.asked, kept.asked_bytes)
    return dataclasses.replace(
        session,
        resolved=ResolvedModel(session.resolved.model, target.adapter),
        tier=FLEX,
        kind=KIND,
        x_request_id="",
        ulid=new_ulid(),
        admission=None,
        limited=False,
        transcript=kept,
        answer=answer,
        shadow=None,
        headers={},
    )


def _row(
    session: InferenceSession,
    copy: InferenceSession,
    answer: Answer,
    found: Answer,
    error: ApiError | None,
) -> ShadowAnswerRow:
    state, tenant_id = session.state, session.tenant.tenant_id
    adapter, shadow = session.resolved.adapter, copy.resolved.adapter
    assert adapter is not None  # an alias has led here
    assert shadow is not None
    return ShadowAnswerRow(
        id=copy.id,
        tenant_id=tenant_id,
        adapter_id=adapter.adapter_id,
        alias=session.resolved.alias,
        request_id=session.id,
        version=adapter.version,
        shadow_version=shadow.version,
        greedy=all(not prompt.generation.sampling.temperature for prompt in session.prompts),
        answer=answer.told(state.secret, tenant_id),
        shadow_answer=None if error else found.told(state.secret, tenant_id),
        error=None if error is None else f"{error.code}: {error.message}"[:500],
    )
