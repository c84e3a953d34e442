"""A count that is too large is refused by name on every route that takes a schema, an expression or
a grammar, in whichever field; and so is one for which a request allows too few tokens. On the real
engine, with a model of random weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api_harness import Api, TestTenant
from tenora_engine.transport.inprocess import InProcessEngineClient
from tenora_platform.settings import Settings
from tiny_engine_api import api_over, tiny_config


@pytest.fixture
async def api(settings: Settings, tmp_path: Path) -> AsyncIterator[Api]:
    async with api_over(settings, InProcessEngineClient(tiny_config(tmp_path))) as made:
        yield made


LARGE = {"type": "object", "properties": {"p": {"type": "string", "minLength": 20_001}}}
MANY = {"type": "array", "minItems": 300, "items": {"type": "integer"}}
HELLO = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    f"/v1/{each}" for each in ("chat/completions", "completions", "responses", "messages")
)


def named(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def fields(schema: Any) -> list[dict[str, Any]]:
    """Each way in which a body of OpenAI's, vLLM's or SGLang's may have a schema."""
    return [
        {"response_format": named(schema)},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"guided_json": schema},
        {"structured_outputs": {"json": schema}},
    ]


def bodies(schema: Any) -> list[tuple[str, dict[str, Any]]]:
    chat, text = {"messages": HELLO}, {"prompt": "Hi"}
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    return [
        *((CHAT, chat | each) for each in fields(schema)),
        *((COMPLETIONS, text | each) for each in fields(schema)),
        (RESPONSES, {"input": "Hi", "text": form}),
        (MESSAGES, {"messages": HELLO, "output_config": {"format": _without_name(form)}}),
    ]


def _without_name(form: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in form["format"].items() if name != "name"}


def tools(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": LARGE} | function}]


OTHERS: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": HELLO, "tools": tools(strict=True)}, "minLength at #/properties/p"),
    (
        CHAT,
        {"messages": HELLO, "tools": tools(strict=True), "tool_choice": "required"},
        "minLength at #/properties/p",
    ),
    (
        RESPONSES,
        {
            "input": "Hi",
            "tools": [{"type": "function", "name": "f", "parameters": LARGE, "strict": True}],
        },
        "minLength at #/properties/p",
    ),
    (
        MESSAGES,
        {
            "messages": HELLO,
            "tools": [{"name": "f", "input_schema": LARGE, "strict": True}],
            "tool_choice": {"type": "any"},
        },
        "minLength at #/properties/p",
    ),
    *(
        (route, body | {name: "(a{0,50}b){50}"}, "the count {50} in the expression")
        for route, body in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "Hi"}))
        for name in ("guided_regex", "regex")
    ),
    *(
        (COMPLETIONS, {"prompt": "Hi", name: 'start: a{5000}\na: "x"'}, "the count {5000} in start")
        for name in ("guided_grammar", "ebnf")
    ),
    (
        COMPLETIONS,
        {"prompt": "Hi", "structured_outputs": {"regex": "a{5000}"}},
        "the count {5000} in the expression",
    ),
]


async def refused(api: Api, tenant: TestTenant, route: str, body: dict[str, Any]) -> str:
    asked = {"model": "fake-base", "max_tokens": 40} | body
    if route == RESPONSES:
        asked["max_output_tokens"] = asked.pop("max_tokens")
    answer = await api.call(tenant.key, "POST", route, json=asked)
    assert answer.status_code == 400, (route, body, answer.text)
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


async def test_every_route_and_field_is_held_to_the_limits(api: Api) -> None:
    tenant = await api.new_tenant("counts", plan="premium")
    cases = [(route, body, "minLength at #/properties/p") for route, body in bodies(LARGE)]
    for route, body, what in cases + OTHERS:
        said = await refused(api, tenant, route, body)
        assert what in said, (route, body, said)
        assert "the maximum is " in said


async def test_every_route_and_field_needs_enough_tokens(api: Api) -> None:
    tenant = await api.new_tenant("few tokens", plan="premium")
    for route, body in bodies(MANY):
        said = await refused(api, tenant, route, body)
        assert "need answers of 601 tokens or more, and this request allows 40" in said, said
    few = {**MANY, "minItems": 3}
    enough = {"model": "fake-base", "prompt": "Hi", "guided_json": few, "max_tokens": 40}
    answer = await api.call(tenant.key, "POST", COMPLETIONS, json=enough)
    assert answer.status_code == 200, answer.text
