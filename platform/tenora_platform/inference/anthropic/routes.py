"""HTTP routes of Anthropic's Messages API, over the same path as chats."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from tenora_platform.auth import TenantContext
from tenora_platform.edge import EdgeRoute
from tenora_platform.inference.anthropic.answer import message_stream, message_whole
from tenora_platform.inference.anthropic.conversation import as_chat, in_its_words, warnings
from tenora_platform.inference.anthropic.schemas import (
    AnthropicMessage,
    CountRequest,
    MessagesRequest,
    TokenCount,
)
from tenora_platform.inference.requests import AdmittedTenant, chat_session, streamed, whole
from tenora_platform.inference.schemas import ChatCompletionRequest
from tenora_platform.inference.token_routes import chat_token_ids, resolved_for_tokens
from tenora_platform.inference.tokenising import gone_through
from tenora_platform.inference.warning_header import warn
from tenora_platform.state import AppState, State

router = APIRouter(tags=["inference"], route_class=EdgeRoute)
_STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.post("/v1/messages", response_model=AnthropicMessage, responses=_STREAMS)
async def create_message(
    body: MessagesRequest, request: Request, state: State, tenant: AdmittedTenant
) -> Response:
    """Anthropic's messages, for text and tools. The key may come as `x-api-key`; errors have
    Anthropic's shape."""
    chat = await _chat(body, state, tenant)
    with in_its_words():
        session = await chat_session(request, state, tenant, chat, kind="msg", asked=body)
    warn(session, warnings(body))
    if body.stream:
        return streamed(session, message_stream(session, body))
    return await whole(session, request, message_whole(session, body))


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, state: State, tenant: AdmittedTenant) -> TokenCount:
    """The tokens that the prompt of such a request would have."""
    chat = await _chat(body, state, tenant)
    with in_its_words():
        resolved = await resolved_for_tokens(state, tenant, body.model)
        token_ids = await chat_token_ids(state, tenant, chat, resolved)
    return TokenCount(input_tokens=len(token_ids))


async def _chat(
    body: CountRequest, state: AppState, tenant: TenantContext
) -> ChatCompletionRequest:
    return await gone_through(state.long_texts, tenant.tenant_id, body, partial(as_chat, body))
