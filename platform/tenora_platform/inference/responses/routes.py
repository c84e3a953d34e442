"""HTTP routes of responses: /v1/responses, over the same path as chats, and what is stored of
them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from tenora_platform.auth import TenantContext, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.requests import AdmittedTenant, chat_session, streamed, whole
from tenora_platform.inference.responses.answer import response_stream, response_whole
from tenora_platform.inference.responses.conversation import as_chat, in_its_words, warnings
from tenora_platform.inference.responses.schemas import (
    ResponseInputItems,
    ResponseObject,
    ResponseRequest,
)
from tenora_platform.inference.responses.storing import (
    asked_of,
    earlier_items,
    page_of_items,
    store_warnings,
)
from tenora_platform.inference.tokenising import gone_through
from tenora_platform.inference.warning_header import warn
from tenora_platform.schemas import After, Deleted, Limit
from tenora_platform.state import State

router = APIRouter(tags=["inference"], route_class=EdgeRoute)
InferenceTenant = Annotated[TenantContext, Depends(require_scope("inference"))]
_STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.post("/v1/responses", response_model=ResponseObject, responses=_STREAMS)
async def create_response(
    body: ResponseRequest, request: Request, state: State, tenant: AdmittedTenant
) -> Response:
    """OpenAI's responses, for text and functions. Stored, and so to be gone on from by
    `previous_response_id`, where the tenant's plan and its own settings allow it."""
    with in_its_words():
        earlier = await earlier_items(state, tenant, body)
        making, given = partial(as_chat, body, earlier), [earlier, body]
        chat = await gone_through(state.long_texts, tenant.tenant_id, given, making)
        session = await chat_session(request, state, tenant, chat, kind="resp", asked=body)
    warn(session, warnings(body) + store_warnings(tenant, body))
    asked = asked_of(tenant, body)
    if body.stream:
        return streamed(session, response_stream(session, asked))
    return await whole(session, request, response_whole(session, asked))


@router.get("/v1/responses/{response_id}", response_model=ResponseObject)
async def get_response(
    response_id: str,
    state: State,
    tenant: InferenceTenant,
    stream: Annotated[bool, Query(description="Streams are not replayed: only false")] = False,
) -> Response:
    """Get a stored response. A key sees those that it has made; with the scope `keys`, all of the
    tenant's."""
    if stream:
        raise unsupported("stream", "a stored response is not streamed again")
    text = await state.responses.response(tenant, response_id)
    return Response(text, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, state: State, tenant: InferenceTenant) -> Deleted:
    """Delete a stored response, now. Conversations that go on from it cannot be continued."""
    await state.responses.delete(tenant, response_id)
    return Deleted(id=response_id, object="response")


@router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
async def cancel_response(response_id: str, state: State, tenant: InferenceTenant) -> Response:
    """Cancel a response that runs in the background. None does here: those that are stored are
    refused."""
    await state.responses.response(tenant, response_id)
    raise BadRequestError(
        "Cannot cancel a synchronous response. Close its connection while it runs.",
        param="response_id",
        code="invalid_value",
    )


@router.get("/v1/responses/{response_id}/input_items", response_model=ResponseInputItems)
async def list_input_items(
    response_id: str,
    state: State,
    tenant: InferenceTenant,
    limit: Limit = 20,
    order: Annotated[
        Literal["asc", "desc"], Query(description="Order in which the items stand")
    ] = "desc",
    after: After = None,
) -> Response:
    """List the items of a stored response's own input, without the conversation before it."""
    made = partial(page_of_items, order=order, after=after, limit=limit)
    page = await state.responses.input(tenant, response_id, made)
    return Response(page, media_type="application/json")
