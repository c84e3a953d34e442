"""LiteLLM's library, by its provider for OpenAI's API at another address (`openai/...`)."""

from __future__ import annotations

from typing import Any

import pytest

from client_checks import (
    HIDDEN,
    PERSON_QUESTION,
    TOKENS,
    WEATHER_QUESTION,
    WEATHER_TOOL,
    Person,
    Tenora,
    Weather,
)

litellm = pytest.importorskip("litellm", reason="run `make clients`")

RESPONSES_TOOL = {"type": "function", **WEATHER_TOOL["function"]}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def asked(tenora: Tenora) -> dict[str, Any]:
    return {
        "model": f"openai/{tenora.model}",
        "api_base": tenora.url,
        "api_key": tenora.key,
        "max_retries": 0,
    }


@pytest.fixture
def chat(asked: dict[str, Any]) -> dict[str, Any]:
    return asked | {"temperature": 0, "max_completion_tokens": TOKENS, "user": "someone"}


def joined(asked: dict[str, Any]) -> Any:
    """The whole answer of a stream."""
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    return litellm.stream_chunk_builder(chunks, messages=asked["messages"])


def test_a_chat_whole_and_streamed(chat: dict[str, Any]) -> None:
    chat |= {"messages": user("Say hello."), "max_completion_tokens": 24}
    whole, streamed = litellm.completion(**chat), joined(chat)
    assert whole.choices[0].message.content
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens
    assert streamed.usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_whole_and_streamed(chat: dict[str, Any], choice: Any) -> None:
    chat |= {"messages": user(WEATHER_QUESTION), "tools": [WEATHER_TOOL]}
    chat |= {"tool_choice": choice, "parallel_tool_calls": False}
    for answer in (litellm.completion(**chat), joined(chat)):
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        Weather.model_validate_json(call.function.arguments)


def test_what_a_tool_answered(chat: dict[str, Any]) -> None:
    """The call as LiteLLM gives it back, the tool's answer behind it, and no choice of ours."""
    chat |= {"messages": user(WEATHER_QUESTION), "tools": [WEATHER_TOOL]}
    said = litellm.completion(**chat, tool_choice="required").choices[0].message
    chat["messages"] += [
        said,
        *(
            {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "18, sunny"}
            for call in said.tool_calls
        ),
    ]
    assert litellm.completion(**chat).choices[0].message.content


def test_structured_output(chat: dict[str, Any]) -> None:
    chat |= {"messages": user(PERSON_QUESTION), "response_format": Person}
    for answer in (litellm.completion(**chat), joined(chat)):
        Person.model_validate_json(answer.choices[0].message.content)


def test_responses(asked: dict[str, Any]) -> None:
    asked |= {"temperature": 0, "max_output_tokens": TOKENS}
    text = {"input": "Say hello.", "max_output_tokens": 24}
    whole = litellm.responses(**asked | text)
    *_, ended = litellm.responses(**asked | text, stream=True)
    assert whole.output_text
    assert ended.response.output_text == whole.output_text
    call = {"input": WEATHER_QUESTION, "tools": [RESPONSES_TOOL], "tool_choice": "required"}
    called = litellm.responses(**asked, **call)
    Weather.model_validate_json(called.output[0].arguments)
    made = litellm.responses(**asked, input=PERSON_QUESTION, text_format=Person)
    Person.model_validate_json(made.output_text)


def test_a_refusal_is_the_clients_error(chat: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="less than or equal to 2"):
        litellm.completion(**chat | {"messages": user("Hello"), "temperature": 7})


@pytest.mark.parametrize("encoding", ["float", None])
def test_embeddings(asked: dict[str, Any], encoding: str | None) -> None:
    found = litellm.embedding(**asked, input=["a kettle"], encoding_format=encoding)
    assert len(found.data[0]["embedding"]) == HIDDEN
    assert found.usage.prompt_tokens > 0
