"""HTTP routes of inference: /v1/models, /v1/chat/completions, /v1/completions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version as package_version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from tenora_engine.config import ModelInfo
from tenora_platform.auth import TenantContext, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import NotFoundError
from tenora_platform.inference.chat import chat_stream, chat_whole
from tenora_platform.inference.completions import (
    completion_stream,
    completion_whole,
    text_prompts,
)
from tenora_platform.inference.requests import (
    AdmittedTenant,
    chat_session,
    make_session,
    resolved_model,
    streamed,
    whole,
)
from tenora_platform.inference.schemas import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ModelCard,
    ModelList,
)
from tenora_platform.inference.session import (
    require_engine,
)
from tenora_platform.inference.tokenising import (
    prompt_lengths,
    refuse_too_long,
    tokenised,
)
from tenora_platform.inference.transcripts import transcript_of
from tenora_platform.large_answers import large_answer
from tenora_platform.paging import Asked
from tenora_platform.registry import repository
from tenora_platform.registry.resolver import model_not_found
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.state import AppState, State
from tenora_platform.tenants.key_terms import covers, require_model

router = APIRouter(tags=["inference"], route_class=EdgeRoute)
InferenceTenant = Annotated[TenantContext, Depends(require_scope("inference"))]

ModelLimit = Annotated[
    int | None, Query(ge=1, le=100, description="Maximum number of models to return")
]
_STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.get("/v1/models", response_model=ModelList)
async def list_models(
    state: State, tenant: InferenceTenant, q: Asked = None, limit: ModelLimit = None
) -> Response:
    """List the base model, then the tenant's usable adapters by name. A key that is restricted to
    certain models sees only those."""
    cards = await _models(state, tenant, q, limit)
    made = partial(ModelList, data=cards)
    return await large_answer(state.large_answers, tenant.tenant_id, made, items=len(cards))


@router.get("/v1/models/{model:path}")
async def get_model(model: str, state: State, tenant: InferenceTenant) -> ModelCard:
    """Get one model. `model` is whatever a request may name: the base model, `name`, `name@3` or
    `name@alias` (an alias with several targets shows one of them)."""
    require_engine(state)
    require_model(tenant, model)
    return await _card_of(state, tenant, model)


@router.get("/get_model_info", include_in_schema=False)
@router.get("/get_server_info", include_in_schema=False)
async def get_server_info(state: State, tenant: InferenceTenant) -> dict[str, Any]:
    """What SGLang's clients look for before they begin: the base model by its name, not its
    path."""
    require_engine(state)
    model = state.engine.model
    return {
        "model_path": model.id,
        "tokenizer_path": model.id,
        "served_model_name": model.id,
        "context_length": model.context_tokens,
        "is_generation": True,
        "version": package_version("tenora"),
    }


async def _card_of(state: AppState, tenant: TenantContext, model: str) -> ModelCard:
    """Raises NotFoundError."""
    base = state.engine.model.id
    resolved = await state.resolver.resolve(tenant.tenant_id, model, base, sticky=tenant.tenant_id)
    if resolved.adapter is None:
        return _base_card(state.engine.model)
    async with state.db.tenant_session(tenant.tenant_id) as session:
        row = await session.get(AdapterVersionRow, resolved.adapter.version_id)
    if row is None:
        raise model_not_found(model)
    return _card(model, row, state.engine.model, tenant)


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
        *([_base_card(state.engine.model)] if covers(tenant.key_models, base) else []),
        *(_card(name, row, state.engine.model, tenant) for name, row in versions),
        *[card async for card in _single_cards(state, tenant)],
    ]
    return [card for card in cards if q is None or q.lower() in card.id.lower()][:limit]


async def _single_cards(state: AppState, tenant: TenantContext) -> AsyncIterator[ModelCard]:
    """The versions and aliases that the key names one by one, as far as there are any."""
    for model in tenant.key_models or ():
        if "@" in model:
            with contextlib.suppress(NotFoundError):
                yield await _card_of(state, tenant, model)


def _base_card(base: ModelInfo) -> ModelCard:
    return ModelCard(
        id=base.id,
        created=0,
        owned_by="tenora",
        root=base.id,
        max_model_len=base.context_tokens,
        context_length=base.context_tokens,
    )


def _card(name: str, row: AdapterVersionRow, base: ModelInfo, tenant: TenantContext) -> ModelCard:
    return ModelCard(
        id=name,
        created=int(row.created_at.timestamp()),
        owned_by=tenant.tenant_id,
        root=name,
        parent=base.id,
        max_model_len=base.context_tokens,
        context_length=base.context_tokens,
        version=row.number,
        digest=row.digest,
    )


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=_STREAMS)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, state: State, tenant: AdmittedTenant
) -> Response:
    """Create a chat completion, as OpenAI's API, with the additional parameters in
    `SamplingFields`."""
    session = await chat_session(request, state, tenant, body, kind="chatcmpl", asked=body)
    if body.stream:
        return streamed(session, chat_stream(session, body))
    return await whole(session, request, chat_whole(session, body))


@router.post("/v1/completions", response_model=Completion, responses=_STREAMS)
async def create_completion(
    body: CompletionRequest, request: Request, state: State, tenant: AdmittedTenant
) -> Response:
    """Create a completion, as OpenAI's API. `prompt` is a string, an array of strings, an array of
    token ids, or an array of arrays of token ids."""
    require_model(tenant, body.model)
    lengths = prompt_lengths(body.prompt)
    refuse_too_long(state.engine, max(lengths, default=0), "prompt")
    work = partial(text_prompts, state, body)
    prompts = await tokenised(state.long_texts, tenant.tenant_id, sum(lengths), work)
    resolved = await resolved_model(state, tenant, body)
    session = make_session(
        request,
        tenant,
        body,
        resolved,
        prompts,
        kind="cmpl",
        open_ended=False,
        transcript=transcript_of(request, tenant, body, sum(lengths)),
    )
    if body.stream:
        return streamed(session, completion_stream(session, body))
    return await whole(session, request, completion_whole(session, body))
