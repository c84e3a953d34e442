"""Which responses are stored, what of them, and what a request that goes on from one is given of
its conversation. How they lie in the database is `receipts.stored_responses`' matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
from pydantic import ConfigDict, TypeAdapter

from tenora_engine.client import EngineClient
from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError
from tenora_platform.ids import new_id
from tenora_platform.inference.bounds import MESSAGES_MAX, PARTS_MAX
from tenora_platform.inference.responses.conversation import SHOWN_FIELDS
from tenora_platform.inference.responses.schemas import (
    LEFT_OUT,
    InputItem,
    Part,
    ResponseObject,
    ResponseRequest,
    StoreError,
)
from tenora_platform.inference.session import InferenceSession
from tenora_platform.inference.tokenising import refuse_too_long, tokenised
from tenora_platform.receipts.stored_responses import BYTES_MAX, NewResponse, NotStored, Turn
from tenora_platform.state import AppState

_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(
    list[InputItem], config=ConfigDict(hide_input_in_errors=True)
)
_ITEM_FIELDS = {"type", "id", "status"}.union(*SHOWN_FIELDS.values())
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


class _Named(msgspec.Struct):
    """Of a stored item, its id."""

    id: str


class _Said(msgspec.Struct):
    """What of a stored response its conversation goes on from."""

    output: msgspec.Raw


class _CountedPart(msgspec.Struct):
    text: str | None = None
    refusal: str | None = None


class _Counted(msgspec.Struct):
    """What of a stored item bounds a conversation."""

    content: str | list[_CountedPart] | None = None
    output: str | list[_CountedPart] | None = None
    arguments: str | None = None

    def parts(self) -> int:
        return sum(len(each) for each in (self.content, self.output) if isinstance(each, list))

    def characters(self) -> int:
        count = len(self.arguments or "")
        for each in (self.content, self.output):
            if isinstance(each, list):
                count += sum(len(part.text or part.refusal or "") for part in each)
            else:
                count += len(each or "")
        return count


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
    work = partial(_items, state.engine, turns, body.input)
    return await tokenised(state.long_texts, tenant.tenant_id, size, work)


def _items(
    engine: EngineClient, turns: Sequence[Turn], more: Sequence[InputItem]
) -> list[InputItem]:
    """Of the turns, if they are within the bounds of one body together with `more`."""
    lists = (each for item in more for each in (item.content, item.output))
    parts = sum(len(each) for each in lists if isinstance(each, list))
    items, characters = len(more), 0
    said: list[bytes] = []
    for turn in turns:
        output = bytes(msgspec.json.decode(turn.response, type=_Said).output)
        for text in (turn.input, output):
            said.append(text)
            for item in msgspec.json.decode(text, type=list[_Counted]):
                items += 1
                parts += item.parts()
                characters += item.characters()
            if items > MESSAGES_MAX or parts > PARTS_MAX:
                raise _too_many()
    refuse_too_long(engine, characters, "messages")
    return [item for text in said for item in _ITEMS.validate_json(text)]


def _too_many() -> BadRequestError:
    return BadRequestError(
        f"The conversation before this response and its input have more than {MESSAGES_MAX} items "
        f"or {PARTS_MAX} content parts. Begin a new one.",
        param="previous_response_id",
        code="context_length_exceeded",
    )


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
        InputItem(
            type=item.type,
            id=new_id(_KINDS.get(item.type, "item")),
            status=item.status or "completed",
            **{name: _stored_content(getattr(item, name)) for name in SHOWN_FIELDS[item.type]},
        )
        for item in body.input
        if item.type not in LEFT_OUT
    ]


def _stored_content(value: Any) -> Any:
    """Of a list of parts, the texts; nothing is shown of one that is empty."""
    if not isinstance(value, list):
        return value
    return [
        Part(type=part.type, text=part.text, refusal=part.refusal)
        for part in value
        if part.text or part.refusal
    ] or ""


def page_of_items(
    text: bytes, order: Literal["asc", "desc"], after: str | None, limit: int
) -> bytes:
    """Of a stored input, as JSON; behind an item that is not there, nothing. Only the items that it
    shows are read whole."""
    items = msgspec.json.decode(text, type=list[msgspec.Raw])
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = (msgspec.json.decode(item, type=_Named).id for item in items)
        place = next((place for place, each in enumerate(ids) if each == after), len(items))
        items = items[place + 1 :]
    page = [_shown(msgspec.json.decode(item)) for item in items[:limit]]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > limit,
        }
    )


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """Its content as parts, each with the fields of its type, whenever it was stored."""
    shown = {name: value for name, value in item.items() if name in _ITEM_FIELDS}
    for name in ("content", "output"):
        if isinstance(shown.get(name), list):
            shown[name] = [_part(part) for part in shown[name]]
    if isinstance(text := shown.get("content"), str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        shown["content"] = [_part({"type": kind, "text": text})]
    return shown


def _part(part: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in part.items() if name in ("type", "text", "refusal")}
    return shown | {"annotations": []} if part["type"] == "output_text" else shown
