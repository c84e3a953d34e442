"""Bodies and queries that pydantic refuses are answered in plain words: which field, what it must
be, and what was given."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api_harness import Api, TestTenant
from tenora_platform.validation import in_words


class Everything(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(default=1, ge=1, le=8)
    ratio: float = 0.5
    on: bool = True
    name: str = Field(default="ab", min_length=1, max_length=3)
    order: Literal["asc", "desc"] = "asc"
    names: list[str] = Field(default=["a"], min_length=1, max_length=2)
    inner: dict[str, int] = {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"count": "ten"}, 'must be an integer, not "ten"'),
        ({"count": 1.5}, "must be an integer, not 1.5"),
        ({"count": None}, "must be an integer, not null"),
        ({"count": 0}, "must be greater than or equal to 1, not 0"),
        ({"count": 9}, "must be less than or equal to 8, not 9"),
        ({"ratio": []}, "must be a number, not an array"),
        ({"on": "perhaps"}, 'must be true or false, not "perhaps"'),
        ({"name": 5}, "must be a string, not 5"),
        ({"name": ""}, "must have at least 1 character, not 0"),
        ({"name": "abcd"}, "must have at most 3 characters, not 4"),
        ({"order": "up"}, "must be 'asc' or 'desc', not \"up\""),
        ({"names": {}}, "must be an array, not an object"),
        ({"names": []}, "must have at least 1 entry, not 0"),
        ({"names": ["a", "b", "c"]}, "must have at most 2 entries, not 3"),
        ({"inner": 1}, "must be an object, not 1"),
        ({"other": 1}, "is not a known field; check the spelling, or leave it out"),
        ({"count": "x" * 200}, f'must be an integer, not "{"x" * 59}...'),
    ],
)
def test_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Everything.model_validate(given)
    assert in_words(caught.value.errors()[0]) == words


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant()


async def test_answers_name_field_value_and_limit(api: Api, tenant: TestTenant) -> None:
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "hi"}]}
    for more, param, message in (
        ({"temperature": 3}, "temperature", "must be less than or equal to 2, not 3"),
        ({"max_tokens": "many"}, "max_tokens", 'must be an integer, not "many"'),
        ({"messages": []}, "messages", "must have at least 1 entry, not 0"),
        ({"model": None}, "model", "is required"),
    ):
        answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json={**body, **more})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), answer.text
        assert error["message"] == f"{param}: {message}."
    answer = await api.admin("GET", "/admin/v1/tenants?limit=1000")
    assert answer.json()["error"]["message"] == (
        'limit: must be less than or equal to 100, not "1000".'
    )


async def test_no_words_of_pydantic_reach_a_client(api: Api, tenant: TestTenant) -> None:
    for path, body in (
        ("/v1/chat/completions", {"model": 1, "messages": "x"}),
        ("/v1/completions", {"model": "fake-base", "prompt": {"a": 1}}),
        ("/v1/embeddings", {"model": "fake-base", "input": None}),
        ("/v1/adapters", None),
        ("/v1/api_keys", {"name": 1, "expires_at": "soon"}),
        ("/v1/completions", []),
    ):
        answer = await api.call(tenant.key, "POST", path, json=body)
        assert answer.status_code in (400, 415), answer.text
        message = answer.json()["error"]["message"]
        for word in ("Input should", "Field required", "Extra inputs", "Value error"):
            assert word not in message, message


TEXT = [{"type": "text", "text": 5}]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (
            CHAT,
            {"messages": [{"role": "user", "content": TEXT}]},
            "messages[0].content[0].text",
            "a string",
        ),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a string"),
        (CHAT, {"tool_choice": {"function": {}}}, "tool_choice.function.name", "is required"),
        (CHAT, {"tool_choice": "maybe"}, "tool_choice", "'required'"),
        (
            CHAT,
            {"tools": [{"type": "function", "function": {"name": 5}}]},
            "tools[0].function.name",
            "a string",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}},
            "response_format.json_schema.schema",
            "an object",
        ),
        (CHAT, {"metadata": {"str": 5}}, "metadata.str", "a string"),
        (COMPLETION, {"stop": ["a", 5]}, "stop[1]", "a string"),
        (COMPLETION, {"stop": 5}, "stop", "a string"),
        (COMPLETION, {"stop_regex": ["a", {}]}, "stop_regex[1]", "a string"),
        (
            "/v1/messages",
            {"max_tokens": 1, "messages": [{"role": "user", "content": TEXT}]},
            "messages[0].content[0].text",
            "a string",
        ),
        ("/v1/messages", {"max_tokens": 1, "system": TEXT}, "system[0].text", "a string"),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": TEXT}]},
            "input[0].content[0].text",
            "a string",
        ),
        ("/v1/embeddings", {"input": ["a", 5]}, "input", ""),
    ],
)
async def test_a_value_of_several_forms_is_told_where_it_is_wrong(
    api: Api, tenant: TestTenant, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    usual: dict[str, dict[str, Any]] = {
        COMPLETION: {"prompt": "a"},
        CHAT: {"messages": hello},
        "/v1/messages": {"messages": hello},
    }
    sent = {"model": "fake-base", **usual.get(path, {}), **body}
    answer = await api.call(tenant.key, "POST", path, json=sent)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"]
