"""HTTP routes of inference: /v1/models, /v1/chat/completions, /v1/completions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.background import BackgroundTask
from starlette.datastructures import State as StarletteState

from tenora_platform.auth import TenantContext, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import NotFoundError
from tenora_platform.ids import new_ulid
from tenora_platform.inference.admission import admitted
from tenora_platform.inference.answers import Answer
from tenora_platform.inference.chat import chat_prompt, chat_stream, chat_whole
from tenora_platform.inference.completions import (
    completion_stream,
    completion_whole,
    text_prompts,
)
from tenora_platform.inference.schemas import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ModelCard,
    ModelList,
    SamplingFields,
)
from tenora_platform.inference.session import (
    InferenceSession,
    Prompt,
    choose_tier,
    require_engine,
)
from tenora_platform.inference.shadowing import chosen, follow
from tenora_platform.inference.stream import EventStream, unless_gone
from tenora_platform.inference.tokenising import (
    count_characters,
    prompt_lengths,
    refuse_too_long,
    tokenised,
)
from tenora_platform.inference.transcripts import transcript_of
from tenora_platform.paging import Asked
from tenora_platform.registry import repository
from tenora_platform.registry.resolver import ResolvedAdapter, ResolvedModel, model_not_found
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.state import AppState, State, state_of
from tenora_platform.tenants.key_terms import covers, require_model

router = APIRouter(tags=["inference"], route_class=EdgeRoute)
InferenceTenant = Annotated[TenantContext, Depends(require_scope("inference"))]
AdmittedTenant = Annotated[TenantContext, Depends(admitted("inference"))]

ModelLimit = Annotated[int | None, Query(ge=1, le=100, description="So many at most")]
_STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.get("/v1/models")
async def list_models(
    state: State, tenant: InferenceTenant, q: Asked = None, limit: ModelLimit = None
) -> ModelList:
    """The base model, then every adapter of the tenant that can be used, by name; of a key that may
    use some models only, those."""
    return ModelList(data=await _models(state, tenant, q, limit))


@router.get("/v1/models/{model:path}")
async def get_model(model: str, state: State, tenant: InferenceTenant) -> ModelCard:
    """Whatever `model` of a request may be: the base model, `name`, `name@3` or `name@alias` (of
    several targets, one)."""
    require_engine(state)
    require_model(tenant, model)
    return await _card_of(state, tenant, model)


async def _card_of(state: AppState, tenant: TenantContext, model: str) -> ModelCard:
    """Raises NotFoundError."""
    base = state.engine.model.id
    resolved = await state.resolver.resolve(tenant.tenant_id, model, base, sticky=tenant.tenant_id)
    if resolved.adapter is None:
        return _base_card(base)
    async with state.db.tenant_session(tenant.tenant_id) as session:
        row = await session.get(AdapterVersionRow, resolved.adapter.version_id)
    if row is None:
        raise model_not_found(model)
    return _card(model, row, base, tenant)


async def _models(
    state: AppState, tenant: TenantContext, q: str | None, limit: int | None
) -> list[ModelCard]:
    require_engine(state)
    base = state.engine.model.id
    async with state.db.tenant_session(tenant.tenant_id) as session:
        versions = await repository.servable_versions(
            session, tenant.tenant_id, names=tenant.key_models, q=q, limit=limit
        )
    cards = [
        *([_base_card(base)] if covers(tenant.key_models, base) else []),
        *(_card(name, row, base, tenant) for name, row in versions),
        *[card async for card in _single_cards(state, tenant)],
    ]
    return [card for card in cards if q is None or q.lower() in card.id.lower()][:limit]


async def _single_cards(state: AppState, tenant: TenantContext) -> AsyncIterator[ModelCard]:
    """The versions and aliases that the key names one by one, as far as there are any."""
    for model in tenant.key_models or ():
        if "@" in model:
            with contextlib.suppress(NotFoundError):
                yield await _card_of(state, tenant, model)


def _base_card(base: str) -> ModelCard:
    return ModelCard(id=base, created=0, owned_by="tenora")


def _card(name: str, row: AdapterVersionRow, base: str, tenant: TenantContext) -> ModelCard:
    return ModelCard(
        id=name,
        created=int(row.created_at.timestamp()),
        owned_by=tenant.tenant_id,
        parent=base,
        version=row.number,
        digest=row.digest,
    )


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=_STREAMS)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, state: State, tenant: AdmittedTenant
) -> Response:
    """OpenAI's chat completions, with the additions of `SamplingFields`."""
    open_ended = body.max_tokens is None and body.max_completion_tokens is None
    require_model(tenant, body.model)
    length = count_characters([body.messages, body.tools, body.chat_template_kwargs])
    refuse_too_long(state.engine, length, "messages")
    resolved = await _resolved(state, tenant, body)
    prompt_for = partial(_chat_prompt, state, tenant, body, length)
    prompt = await prompt_for(resolved.adapter)
    session = _session(
        request,
        tenant,
        body,
        resolved,
        [prompt],
        kind="chatcmpl",
        open_ended=open_ended,
        length=length,
    )
    session.prompt_for = prompt_for if session.shadow is not None else None
    if body.stream:
        return _streamed(session, chat_stream(session, body))
    return await _whole(session, request, chat_whole(session, body))


async def _chat_prompt(
    state: AppState,
    tenant: TenantContext,
    body: ChatCompletionRequest,
    length: int,
    adapter: ResolvedAdapter | None,
) -> Prompt:
    """By the adapter's own template, or the base model's. Raises InvalidRequestError."""
    template = await state.templates.of(tenant.tenant_id, adapter, state.engine.text)
    work = partial(chat_prompt, state, body, template)
    if template is None:
        return await tokenised(state.long_texts, tenant.tenant_id, length, work)
    return await state.templates.run(tenant.tenant_id, work)


@router.post("/v1/completions", response_model=Completion, responses=_STREAMS)
async def create_completion(
    body: CompletionRequest, request: Request, state: State, tenant: AdmittedTenant
) -> Response:
    """OpenAI's completions: `prompt` is a text, texts, token ids, or lists of token ids."""
    require_model(tenant, body.model)
    lengths = prompt_lengths(body.prompt)
    refuse_too_long(state.engine, max(lengths, default=0), "prompt")
    work = partial(text_prompts, state, body)
    prompts = await tokenised(state.long_texts, tenant.tenant_id, sum(lengths), work)
    resolved = await _resolved(state, tenant, body)
    session = _session(
        request, tenant, body, resolved, prompts, kind="cmpl", open_ended=False, length=sum(lengths)
    )
    if body.stream:
        return _streamed(session, completion_stream(session, body))
    return await _whole(session, request, completion_whole(session, body))


async def _resolved(state: AppState, tenant: TenantContext, body: SamplingFields) -> ResolvedModel:
    """Who says who is asking stays with one version of a weighted alias. Raises NotFoundError."""
    sticky = body.user or body.prompt_cache_key
    return await state.resolver.resolve(
        tenant.tenant_id, body.model, state.engine.model.id, sticky=sticky
    )


def _session(
    request: Request,
    tenant: TenantContext,
    body: SamplingFields,
    resolved: ResolvedModel,
    prompts: list[Prompt],
    *,
    kind: str,
    open_ended: bool,
    length: int,
) -> InferenceSession:
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
        transcript=transcript_of(request, tenant, body, length),
        asked_tier=body.service_tier,
        shadow=shadow,
        answer=None if shadow is None else Answer(),
    )


def _only_once(state: StarletteState) -> str:
    """The ULID that the answer's id shares with an x-request-id of our making. Usage is known by
    it: another session of the same HTTP request would get another."""
    ulid, state.request_ulid = state.request_ulid, new_ulid()
    return str(ulid)


def _streamed(session: InferenceSession, events: AsyncGenerator[bytes]) -> EventStream:
    after = partial(follow, session)
    return EventStream(events, lambda: session.headers, session.leave, after)


async def _whole(
    session: InferenceSession,
    request: Request,
    work: Coroutine[Any, Any, ChatCompletion] | Coroutine[Any, Any, Completion],
) -> Response:
    answer = await unless_gone(request.receive, work, session.leave)
    return Response(
        answer.model_dump_json(),
        media_type="application/json",
        headers=session.headers,
        background=BackgroundTask(follow, session),  # once it has been sent
    )
