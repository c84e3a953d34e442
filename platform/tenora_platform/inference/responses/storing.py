"""Which responses are stored, what of them, and what a request that goes on from one is given of
its conversation. How they lie in the database is `receipts.stored_responses`' matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
from pydantic import TypeAdapter

from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError
from tenora_platform.ids import new_id
from tenora_platform.inference.bounds import MESSAGES_MAX
from tenora_platform.inference.responses.schemas import (
    LEFT_OUT,
    InputItem,
    ResponseInputItems,
    ResponseObject,
    ResponseRequest,
    StoreError,
)
from tenora_platform.inference.session import InferenceSession
from tenora_platform.inference.tokenising import tokenised
from tenora_platform.receipts.stored_responses import BYTES_MAX, NewResponse, NotStored, Turn
from tenora_platform.state import AppState

_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])
_KINDS = {"message": "msg", "function_call": "fc", "function_call_output": "fco"}
_NOT_IN_PLAN = "store has no effect: the tenant's plan does not include stored responses"
_NOT_CHOSEN = (
    "store has no effect: this tenant does not store responses (stored_response_days of its "
    "settings)"
)
_WHY: dict[NotStored, StoreError] = {
    "off": StoreError(
        code="stored_responses_off", message="This tenant does not store responses any more."
    ),
    "full": StoreError(
        code="stored_responses_full",
        message="The tenant has as many stored responses as it may. Delete some, or store them for "
        "fewer days.",
    ),
    "too_large": StoreError(
        code="stored_response_too_large",
        message=f"Input and response have more than {BYTES_MAX} bytes.",
    ),
    "unavailable": StoreError(
        code="stored_responses_unavailable",
        message="The database did not store the response in time.",
    ),
}


@dataclass(frozen=True)
class Asked:
    """What the client asked for, and whether the response is to be stored."""

    body: ResponseRequest
    store: bool


class _Said(msgspec.Struct):
    """What of a stored response its conversation goes on from."""

    output: msgspec.Raw


def asked_of(tenant: TenantContext, body: ResponseRequest) -> Asked:
    """Where nothing is said a response is stored, as at OpenAI, if the tenant has chosen so."""
    return Asked(body, tenant.stores_responses and body.store is not False)


def store_warnings(tenant: TenantContext, body: ResponseRequest) -> list[str]:
    if not body.store or tenant.stores_responses:
        return []
    return [_NOT_CHOSEN if tenant.plan.stored_responses else _NOT_IN_PLAN]


async def earlier_items(
    state: AppState, tenant: TenantContext, body: ResponseRequest
) -> list[InputItem]:
    """All that was said before, in the order in which it was. Raises BadRequestError for a
    conversation that is not there, or longer than one body may hold."""
    previous = body.previous_response_id
    if previous is None:
        return []
    turns = await state.responses.conversation(tenant, previous, state.settings.max_body)
    size = sum(len(turn.input) + len(turn.response) for turn in turns)
    work = partial(_items, turns)
    items = await tokenised(state.long_texts, tenant.tenant_id, size, work)
    if len(items) + len(body.input) > MESSAGES_MAX:
        raise BadRequestError(
            f"The conversation has {len(items)} items before this input; with it, at most "
            f"{MESSAGES_MAX} are allowed.",
            param="previous_response_id",
            code="context_length_exceeded",
        )
    return items


def _items(turns: Sequence[Turn]) -> list[InputItem]:
    items: list[InputItem] = []
    for turn in turns:
        items += _ITEMS.validate_json(turn.input)
        items += _ITEMS.validate_json(bytes(msgspec.json.decode(turn.response, type=_Said).output))
    return items


async def stored(session: InferenceSession, asked: Asked, response: ResponseObject) -> None:
    """If it is to be; then it is there for every process before the client is told of its end. One
    that cannot be stored says so."""
    if not asked.store:
        return
    reason = await session.state.responses.store(session.tenant, partial(_new, asked, response))
    if reason is not None:
        response.store = False
        response.store_error = _WHY[reason]


def _new(asked: Asked, response: ResponseObject) -> NewResponse:
    return NewResponse(
        id=response.id,
        previous_id=asked.body.previous_response_id,
        input=_ITEMS.dump_json(_stored_items(asked.body), exclude_none=True),
        response=response.model_dump_json().encode(),
    )


def _stored_items(body: ResponseRequest) -> list[InputItem]:
    """What the model is shown of the input, each item by an id of its own."""
    return [
        item.model_copy(
            update={
                "id": new_id(_KINDS.get(item.type, "item")),
                "status": item.status or "completed",
            }
        )
        for item in body.input
        if item.type not in LEFT_OUT
    ]


def page_of_items(
    text: bytes, order: Literal["asc", "desc"], after: str | None, limit: int
) -> ResponseInputItems:
    """Of a stored input; behind an item that is not there, nothing."""
    items: list[dict[str, Any]] = msgspec.json.decode(text)
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        items = items[places[0] + 1 :] if places else []
    page = [_shown(item) for item in items[:limit]]
    return ResponseInputItems(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(items) > limit,
    )


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """A message's text as the part that it is."""
    content = item.get("content")
    if not isinstance(content, str):
        return item
    if item.get("role") == "assistant":
        part = {"type": "output_text", "text": content, "annotations": []}
    else:
        part = {"type": "input_text", "text": content}
    return item | {"content": [part]}
