"""Anthropic's client, whole and streamed, with tools; and the body of Claude Code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agent_bodies import CLAUDE_CODE_HEADERS, claude_code_body
from client_checks import Tenora

anthropic = pytest.importorskip("anthropic", reason="run `make clients`")
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(tenora: Tenora) -> Iterator[Any]:
    url = tenora.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key=tenora.key, max_retries=0) as made:
        yield made


@pytest.fixture
def asked(tenora: Tenora) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Say hello."}]
    return {
        "model": tenora.model,
        "max_tokens": 24,
        "messages": messages,
        "extra_body": {"temperature": 0},
    }


def test_a_message_whole_and_streamed(client: Any, asked: dict[str, Any]) -> None:
    whole = client.messages.create(system="Be brief.", **asked)
    with client.messages.stream(system="Be brief.", **asked) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0].text == whole.content[0].text
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0
    counted = client.messages.count_tokens(
        system="Be brief.", model=asked["model"], messages=asked["messages"]
    )
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_a_forced_tool(client: Any, asked: dict[str, Any]) -> None:
    choice = {"type": "tool", "name": "get_weather"}
    answer = client.messages.create(
        tools=[WEATHER], tool_choice=choice, **asked | {"max_tokens": 64}
    )
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert (call.name, set(call.input)) == ("get_weather", {"city"})
    assert answer.stop_reason == "tool_use"


def test_an_adapter(client: Any, asked: dict[str, Any]) -> None:
    assert client.messages.create(**asked | {"model": "support"}).model.startswith("support")


def test_a_refusal_is_the_clients_error(client: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**asked | {"extra_body": {"temperature": 7}})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**asked | {"model": "nonesuch"})


def test_the_body_of_claude_code(tenora: Tenora) -> None:
    headers = {"authorization": f"Bearer {tenora.key}", **CLAUDE_CODE_HEADERS}
    url = f"{tenora.url}/messages?beta=true"
    body = claude_code_body(tenora.model, WEATHER)
    answer = httpx.post(url, headers=headers, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.text.count("event: message_stop") == 1
