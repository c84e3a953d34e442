"""An admitted request on its way: from its body to a session, and from the session to what is sent.
It knows no answer's shape."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from functools import partial
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request, Response
from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.datastructures import State as StarletteState

from tenora_platform.auth import TenantContext
from tenora_platform.ids import new_ulid
from tenora_platform.inference.admission import admitted
from tenora_platform.inference.answers import Answer
from tenora_platform.inference.chat import chat_prompt
from tenora_platform.inference.schemas import ChatCompletionRequest
from tenora_platform.inference.session import InferenceSession, Prompt, choose_tier
from tenora_platform.inference.shadowing import chosen, follow
from tenora_platform.inference.stream import EventStream, unless_gone
from tenora_platform.inference.tokenising import (
    count_characters,
    gone_through,
    refuse_too_long,
    tokenised,
)
from tenora_platform.inference.transcripts import transcript_of
from tenora_platform.receipts.contents import Transcript
from tenora_platform.registry.resolver import ResolvedAdapter, ResolvedModel
from tenora_platform.request_ids import call_request
from tenora_platform.state import AppState, state_of
from tenora_platform.tenants.key_terms import require_model

AdmittedTenant = Annotated[TenantContext, Depends(admitted("inference"))]


async def chat_session(
    request: Request,
    state: AppState,
    tenant: TenantContext,
    body: ChatCompletionRequest,
    *,
    kind: str,
    asked: BaseModel,
) -> InferenceSession:
    """Of a chat, which the client `asked` for in whatever shape. Raises ApiErrors, EngineErrors."""
    require_model(tenant, body.model)
    length = await prompt_characters(state, tenant, body)
    resolved = await resolved_model(state, tenant, body)
    prompt_for = partial(_chat_prompt, state, tenant, body, length)
    prompt = await prompt_for(resolved.adapter)
    session = make_session(
        request,
        tenant,
        body,
        resolved,
        [prompt],
        kind=kind,
        open_ended=body.max_tokens is None and body.max_completion_tokens is None,
        transcript=transcript_of(request, tenant, asked, length),
    )
    session.prompt_for = prompt_for if session.shadow is not None else None
    return session


async def prompt_characters(
    state: AppState, tenant: TenantContext, body: ChatCompletionRequest
) -> int:
    """How many a chat's prompt is made of. Raises BadRequestError for a prompt that cannot fit."""
    shown = [body.messages, body.tools, body.chat_template_kwargs]
    counting = partial(count_characters, shown)
    length = await gone_through(state.long_texts, tenant.tenant_id, shown, counting)
    refuse_too_long(state.engine, length, "messages")
    return length


async def _chat_prompt(
    state: AppState,
    tenant: TenantContext,
    body: ChatCompletionRequest,
    length: int,
    adapter: ResolvedAdapter | None,
) -> Prompt:
    """By the body's own template, the adapter's, or the base model's. Raises BadRequestError,
    InvalidRequestError."""
    template = await state.templates.of(
        tenant.tenant_id, adapter, state.engine.text, body.chat_template
    )
    work = partial(chat_prompt, state, body, template)
    if template is None:
        return await tokenised(state.long_texts, tenant.tenant_id, length, work)
    return await state.templates.run(tenant.tenant_id, work)


class Asking(Protocol):
    """What the bodies of all requests for inference say."""

    @property
    def model(self) -> str: ...

    @property
    def user(self) -> str | None: ...

    @property
    def prompt_cache_key(self) -> str | None: ...

    @property
    def service_tier(self) -> str | None: ...

    @property
    def request_id(self) -> str | None: ...


async def resolved_model(state: AppState, tenant: TenantContext, body: Asking) -> ResolvedModel:
    """Who says who is asking stays with one version of a weighted alias. Raises NotFoundError."""
    sticky = body.user or body.prompt_cache_key
    return await state.resolver.resolve(
        tenant.tenant_id, body.model, state.engine.model.id, sticky=sticky
    )


def make_session(
    request: Request,
    tenant: TenantContext,
    body: Asking,
    resolved: ResolvedModel,
    prompts: list[Prompt],
    *,
    kind: str,
    open_ended: bool,
    transcript: Transcript | None,
) -> InferenceSession:
    """Of a request that the limits have admitted."""
    call_request(request.scope, body.request_id)
    shadow = chosen(resolved)
    return InferenceSession(
        state=state_of(request),
        tenant=tenant,
        resolved=resolved,
        prompts=prompts,
        tier=choose_tier(tenant, body.service_tier),
        open_ended=open_ended,
        kind=kind,
        x_request_id=request.state.request_id,
        ulid=_only_once(request.state),
        admission=getattr(request.state, "admission", None),
        transcript=transcript,
        asked_tier=body.service_tier,
        shadow=shadow,
        answer=None if shadow is None else Answer(),
    )


def _only_once(state: StarletteState) -> str:
    """The ULID that the answer's id shares with an x-request-id of our making. Usage is known by
    it: another session of the same HTTP request would get another."""
    ulid, state.request_ulid = state.request_ulid, new_ulid()
    return str(ulid)


def streamed(session: InferenceSession, events: AsyncGenerator[bytes]) -> EventStream:
    after = partial(follow, session)
    return EventStream(
        events, lambda: session.headers, session.leave, after, lambda: session.failure
    )


async def whole(
    session: InferenceSession,
    request: Request,
    work: Coroutine[Any, Any, BaseModel | bytes],
) -> Response:
    """The response, when all of the answer is there; `bytes` are JSON already."""
    answer = await unless_gone(request.receive, work, session.leave)
    return Response(
        answer if isinstance(answer, bytes) else answer.model_dump_json(),
        media_type="application/json",
        headers=session.headers,
        background=BackgroundTask(follow, session),  # once it has been sent
    )
