"""Answers that may be large: made and written as JSON beside the event loop, so that whoever else
this process serves does not wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fastapi import Response
from pydantic import BaseModel

from tenora_platform.turns import Turns

_SMALL = 100
"""Items that are made within 2 ms: they need not wait for others' large answers."""


async def large_answer(
    turns: Turns, tenant_id: str | None, make: Callable[[], BaseModel], *, items: int | None = None
) -> Response:
    """What `make` makes, as FastAPI would write it: in a thread and in the tenant's turn (None: the
    operator's), unless it is known to have few `items`."""
    if items is not None and items <= _SMALL:
        content = json_of(make())
    else:
        content = await turns.run(tenant_id or "", lambda: json_of(make()))
    return Response(content, media_type="application/json")


def json_of(model: BaseModel) -> bytes:
    """The model's JSON; its lists of models come last."""
    return b"".join(_pieces(model))


def _pieces(model: BaseModel) -> Iterator[bytes]:
    """Of a model with lists of models, these one by one: the writer holds Python's lock until it is
    done with what it was given."""
    lists = {name: value for name, value in model if _is_list_of_models(value)}
    text = model.model_dump_json(exclude=set(lists), by_alias=True).encode()
    if not lists:
        yield text
        return
    yield text[:-1]
    sign = b"," if text != b"{}" else b""
    for name, value in lists.items():
        yield b'%s"%s":' % (sign, _alias(model, name).encode())
        yield from _list(value)
        sign = b","
    yield b"}"


def _list(models: Sequence[BaseModel]) -> Iterator[bytes]:
    yield b"["
    for place, each in enumerate(models):
        if place:
            yield b","
        yield from _pieces(each)
    yield b"]"


def _is_list_of_models(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], BaseModel)


def _alias(model: BaseModel, name: str) -> str:
    return type(model).model_fields[name].serialization_alias or name
