"""What an answer is to follow, from bodies of the official client to what the engine is asked, and
back when the engine refuses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from api_harness import Api
from served_api import HELLO, reset, served
from tenora_engine.errors import InvalidRequestError
from tenora_engine.request import Grammar

SCHEMA = {"type": "object", "properties": {"b": {"const": None}, "a": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"const":null},"a":{"type":"integer"}}}'
OBJECT_TEXT = '{"type":"object"}'


class Person(BaseModel):
    name: str
    age: int
    mood: Literal["good", "bad"]


PERSON = {"name": "Ada", "age": 36, "mood": "good"}


@pytest.fixture(scope="module")
async def base_url(api: Api) -> AsyncIterator[str]:
    async with served(api) as url:
        yield url


@pytest.fixture(scope="module")
async def client(api: Api, base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    tenant = await api.new_tenant("formats", plan="premium")
    async with openai.AsyncOpenAI(api_key=tenant.key, base_url=base_url, max_retries=0) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


async def ask(client: openai.AsyncOpenAI, is_chat: bool, **body: Any) -> Any:
    if is_chat:
        return await client.chat.completions.create(
            model="fake-base", messages=HELLO, extra_body=body
        )
    return await client.completions.create(model="fake-base", prompt="x", extra_body=body)


def of_openai(kind: str, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": kind, **more}}


EMPTY: list[tuple[str, Any]] = [("json", ""), ("regex", ""), ("grammar", ""), ("choice", [])]
"""They ask for nothing that an answer could be; whoever means nothing leaves them out."""


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completion"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (of_openai("text"), None),
        (of_openai("json_object"), ("json_schema", OBJECT_TEXT)),
        (
            of_openai("json_schema", json_schema={"name": "s", "schema": SCHEMA, "strict": True}),
            ("json_schema", SCHEMA_TEXT),
        ),
        (
            of_openai("json_schema", json_schema={"name": "s", "schema": SCHEMA, "strict": None}),
            ("json_schema", SCHEMA_TEXT),
        ),
        ({"guided_json": SCHEMA}, ("json_schema", SCHEMA_TEXT)),
        ({"guided_json": SCHEMA_TEXT}, ("json_schema", SCHEMA_TEXT)),
        ({"guided_json": {}}, ("json_schema", "{}")),
        ({"guided_json": True}, ("json_schema", "{}")),
        ({"guided_json": None, "guided_choice": None}, None),
        ({"guided_regex": "a+"}, ("regex", "a+")),
        ({"guided_regex": " "}, ("regex", " ")),
        ({"guided_choice": ["a", "größe"]}, ("choice", '["a", "größe"]')),
        ({"guided_grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", SCHEMA_TEXT)),
        ({"structured_outputs": {"regex": "a", "choice": None}}, ("regex", "a")),
        ({"structured_outputs": {"choice": ["a"]}}, ("choice", '["a"]')),
        ({"structured_outputs": {"grammar": "start: A"}}, ("grammar", "start: A")),
        ({"structured_outputs": {"json_object": True}}, ("json_schema", OBJECT_TEXT)),
        ({"structured_outputs": None}, None),
    ],
)
async def test_bodies_become_grammars(
    api: Api,
    client: openai.AsyncOpenAI,
    is_chat: bool,
    body: dict[str, Any],
    expected: tuple[str, str] | None,
) -> None:
    await ask(client, is_chat, **body)
    found = api.engine.requests[-1].sampling.grammar
    if expected is None:
        assert found is None
    else:
        assert found == Grammar(expected[0], expected[1], next(iter(body)))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completion"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (of_openai("json_schema"), "response_format"),
        (of_openai("json_schema", json_schema={"name": "s"}), "response_format"),
        (of_openai("json_object", json_schema={"name": "s", "schema": {}}), "response_format"),
        ({**of_openai("json_object"), "guided_json": SCHEMA}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "json": SCHEMA}}, "structured_outputs"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        *(({f"guided_{name}": empty}, f"guided_{name}") for name, empty in EMPTY),
        *(
            ({"structured_outputs": {name: empty}}, f"structured_outputs.{name}")
            for name, empty in EMPTY
        ),
        ({"guided_regex": "", "guided_choice": ["a"]}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": ""}}, "structured_outputs.structural_tag"),
        ({"structural_tag": ""}, "structural_tag"),
    ],
)
async def test_what_says_nothing_clear_is_refused(
    api: Api, client: openai.AsyncOpenAI, is_chat: bool, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client, is_chat, **body)
    assert refused.value.param == param
    assert not api.engine.requests


async def test_which_formats_are_too_many_is_said(api: Api, client: openai.AsyncOpenAI) -> None:
    outputs = {"regex": "a", "json": SCHEMA}
    with pytest.raises(openai.BadRequestError, match=r"Only one of json, regex, choice, .* set in"):
        await ask(client, True, structured_outputs=outputs)
    with pytest.raises(openai.BadRequestError, match="Only one of guided_regex and ebnf can be"):
        await ask(client, True, guided_regex="a", ebnf="start: A")


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_cannot_follow_is_a_400(
    api: Api, client: openai.AsyncOpenAI, stream: bool
) -> None:
    reason = 'the JSON schema is not supported: Unimplemented keys: ["not"]'
    api.engine.refusal = InvalidRequestError(reason, "response_format")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="fake-base",
            messages=HELLO,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"not": {}}},
            },
            stream=stream,
        )
    assert refused.value.param == "response_format"
    assert refused.value.type == "invalid_request_error"
    assert '"not"' in refused.value.message


async def test_the_official_client_parses(api: Api, client: openai.AsyncOpenAI) -> None:
    api.engine.answer = lambda request, index: json.dumps(PERSON)
    answer = await client.chat.completions.parse(
        model="fake-base", messages=HELLO, response_format=Person
    )
    assert answer.choices[0].message.parsed == Person(**PERSON)  # type: ignore[arg-type]
    asked = api.engine.requests[-1].sampling.grammar
    assert asked is not None
    assert json.loads(asked.text)["required"] == ["name", "age", "mood"]
    async with client.chat.completions.stream(
        model="fake-base", messages=HELLO, response_format=Person
    ) as stream:
        last = await stream.get_final_completion()
    assert last.choices[0].message.parsed == Person(**PERSON)  # type: ignore[arg-type]


async def test_responses_have_formats_too(api: Api, client: openai.AsyncOpenAI) -> None:
    api.engine.answer = lambda request, index: json.dumps(PERSON)
    answer = await client.responses.parse(model="fake-base", input="Hi", text_format=Person)
    assert answer.output_parsed == Person(**PERSON)  # type: ignore[arg-type]
    asked = api.engine.requests[-1].sampling.grammar
    assert asked is not None
    assert json.loads(asked.text)["required"] == ["name", "age", "mood"]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(
            model="fake-base",
            input="Hi",
            extra_body={"text": {"format": {"type": "json_schema", "name": "s"}}},
        )
    assert refused.value.param == "text.format"


async def test_json_has_options_of_its_own(api: Api, client: openai.AsyncOpenAI) -> None:
    asked = of_openai("json_object")
    await ask(client, True, **asked, json_close=False, json_max_depth=3)
    found = api.engine.requests[-1].sampling.grammar
    assert found is not None
    assert (found.closes, found.max_depth) == (False, 3)
    compact = {"json": {"type": "object"}, "disable_any_whitespace": True}
    await ask(client, True, structured_outputs=compact)
    found = api.engine.requests[-1].sampling.grammar
    assert found is not None
    assert json.loads(found.text)["x-guidance"]["item_separator"] == ","
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client, True, **asked, json_max_depth=65)
    assert refused.value.param == "json_max_depth"
