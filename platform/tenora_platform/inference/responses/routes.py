"""HTTP route of responses: /v1/responses, over the same path as chats."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from tenora_platform.edge import EdgeRoute
from tenora_platform.inference.requests import AdmittedTenant, chat_session, streamed, whole
from tenora_platform.inference.responses.answer import response_stream, response_whole
from tenora_platform.inference.responses.conversation import as_chat, in_its_words, warnings
from tenora_platform.inference.responses.schemas import ResponseObject, ResponseRequest
from tenora_platform.inference.warning_header import warn
from tenora_platform.state import State

router = APIRouter(tags=["inference"], route_class=EdgeRoute)
_STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.post("/v1/responses", response_model=ResponseObject, responses=_STREAMS)
async def create_response(
    body: ResponseRequest, request: Request, state: State, tenant: AdmittedTenant
) -> Response:
    """OpenAI's responses, for text and functions. Nothing is stored: the conversation comes with
    each request."""
    with in_its_words():
        chat = as_chat(body)
        session = await chat_session(request, state, tenant, chat, kind="resp", asked=body)
    warn(session, warnings(body))
    if body.stream:
        return streamed(session, response_stream(session, body))
    return await whole(session, request, response_whole(session, body))
