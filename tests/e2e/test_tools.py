"""Tools and responses through the whole platform with the real model, to the official client: a
forced call parses and fits its schema whatever the model would have said."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import openai
import pytest

from running_platform import Running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"name": "get_weather", "parameters": SCHEMA, "strict": True}
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: list[Any] = [{"type": "function", "function": WEATHER}]


@pytest.fixture
async def acme(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=running.api, api_key=running.acme.key, max_retries=0
    ) as api:
        yield api


@pytest.mark.parametrize("adapter", [False, True])
async def test_a_forced_call_fits_its_schema(
    running: Running, acme: openai.AsyncOpenAI, adapter: bool
) -> None:
    model = "support" if adapter else running.base_model
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        asked: dict[str, Any] = {
            "model": model,
            "messages": QUESTION,
            "tools": TOOLS,
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 200,
        }
        whole = (await acme.chat.completions.create(**asked)).choices[0]
        async with acme.chat.completions.stream(**asked) as stream:
            streamed = (await stream.get_final_completion()).choices[0]
        for said in (whole, streamed):
            assert said.finish_reason == "tool_calls"
            assert not said.message.content
            (call,) = said.message.tool_calls or []
            assert call.type == "function"
            assert call.function.name == "get_weather"
            jsonschema_rs.validate(SCHEMA, json.loads(call.function.arguments))


async def test_arguments_are_streamed_and_may_be_cut_off(
    running: Running, acme: openai.AsyncOpenAI
) -> None:
    """A forced call token by token, and again without its last tokens: a call in both cases."""
    asked: dict[str, Any] = {
        "model": running.base_model,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "temperature": 0,
    }
    pieces: list[str] = []
    stream = await acme.chat.completions.create(**asked, max_tokens=200, stream=True)
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            pieces.append(call.function.arguments or "")
    assert len(pieces) > 5  # the name, then tokens; how many come together is the engine's
    arguments = "".join(pieces)
    jsonschema_rs.validate(SCHEMA, json.loads(arguments))
    whole = await acme.chat.completions.create(**asked, max_tokens=200)
    assert whole.usage is not None
    most = whole.usage.completion_tokens - 12  # the mark and the end have fewer
    cut = (await acme.chat.completions.create(**asked, max_tokens=most)).choices[0]
    assert cut.finish_reason == "length"
    assert not cut.message.content
    (made,) = cut.message.tool_calls or []
    assert made.type == "function"
    assert arguments.startswith(made.function.arguments)
    assert made.function.arguments != arguments


async def test_responses(running: Running, acme: openai.AsyncOpenAI) -> None:
    """The answer of the chat, in the other shape."""
    chat = await acme.chat.completions.create(
        model=running.base_model, messages=QUESTION, temperature=0, max_tokens=24
    )
    asked: dict[str, Any] = {"model": running.base_model, "temperature": 0}
    asked["input"] = QUESTION[0]["content"]
    whole = await acme.responses.create(**asked, max_output_tokens=24)
    assert whole.output_text == chat.choices[0].message.content
    stream = await acme.responses.create(**asked, max_output_tokens=24, stream=True)
    events = [event async for event in stream]
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == whole.output_text
    asked |= {"tools": [{"type": "function", **WEATHER}], "tool_choice": "required"}
    called = await acme.responses.create(**asked, parallel_tool_calls=False, max_output_tokens=200)
    calls = [item for item in called.output if item.type == "function_call"]
    assert calls
    assert len(calls) == len(called.output)
    for call in calls:
        jsonschema_rs.validate(SCHEMA, json.loads(call.arguments))
    ended = events[-1]
    assert ended.type in ("response.completed", "response.incomplete")
    assert whole.usage is not None
    assert ended.response.usage == whole.usage or whole.usage.input_tokens_details.cached_tokens
