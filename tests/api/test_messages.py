"""/v1/messages with the official `anthropic` client: text and tools, whole and streamed, what the
model is asked, and errors in the shape that its clients read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
from msgspec.structs import replace

from agent_bodies import CLAUDE_CODE_HEADERS, claude_code_body
from api_harness import Api, TestTenant
from served_api import reset, served, until
from tenora_engine.errors import QueueFullError

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather now.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
async def base_url(api: Api) -> AsyncIterator[str]:
    async with served(api) as url:
        yield url.removesuffix("/v1")


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("messages", plan="premium")


@pytest.fixture(scope="module")
async def client(base_url: str, tenant: TestTenant) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        api_key=tenant.key, base_url=base_url, max_retries=0
    ) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for tools in a prompt, a token a byte."""
    reset(api.engine)
    monkeypatch.setattr(api.engine, "model", replace(api.engine.model, context_tokens=4096))


def asked(body: dict[str, Any]) -> dict[str, Any]:
    hello = [{"role": "user", "content": "Hi"}]
    return {"model": "fake-base", "max_tokens": 200, "messages": hello, **body}


async def ask(client: anthropic.AsyncAnthropic, **body: Any) -> Any:
    return await client.messages.create(**asked(body))


async def streamed(client: anthropic.AsyncAnthropic, **body: Any) -> Any:
    """What the client's own accumulation makes of a stream."""
    async with client.messages.stream(**asked(body)) as stream:
        return await stream.get_final_message()


def prompt_of(api: Api) -> str:
    token_ids = api.engine.requests[-1].prompt_token_ids
    return api.engine.text.decode(token_ids, skip_special=False)


@pytest.mark.parametrize("make", [ask, streamed])
async def test_text(api: Api, client: anthropic.AsyncAnthropic, make: Any) -> None:
    api.engine.answer = lambda request, index: "Grüße 👩‍🚀"
    answer = await make(
        client,
        system="Be brief.",
        max_tokens=100,
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 7},
    )
    (block,) = answer.content
    assert (block.type, block.text) == ("text", "Grüße 👩‍🚀")
    assert answer.id.startswith("msg_")
    assert (answer.role, answer.model) == ("assistant", "fake-base")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    request = api.engine.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert sampling.max_tokens == 100
    assert prompt_of(api) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(request.prompt_token_ids)
    assert usage.output_tokens == len("Grüße 👩‍🚀".encode()) + 1


@pytest.mark.parametrize("make", [ask, streamed])
async def test_tools(api: Api, client: anthropic.AsyncAnthropic, make: Any) -> None:
    """Two calls, then their answers, with the first answer's blocks given back as they are."""
    api.engine.answer = lambda request, index: f"Let me see.\n{CALL}\n{CALL}"
    first = await make(client, tools=[WEATHER], tool_choice={"type": "auto"})
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    assert first.stop_reason == "tool_use"
    assert first.content[0].text == "Let me see."
    calls = first.content[1:]
    for call in calls:
        assert (call.name, call.input) == ("get_weather", {"city": "Köln"})
    assert len({call.id for call in calls}) == 2
    api.engine.answer = lambda request, index: "It rains."
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": calls[0].id, "content": "Rain."},
                {
                    "type": "tool_result",
                    "tool_use_id": calls[1].id,
                    "content": [{"type": "text", "text": "No such city."}],
                    "is_error": True,
                },
                {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    second = await make(client, messages=history, tools=[WEATHER])
    assert second.content[0].text == "It rains."
    assert prompt_of(api).split("<|im_start|>")[2:] == [
        "user\nWeather?<|im_end|>\n",
        f"assistant\nLet me see.\n{CALL}\n{CALL}<|im_end|>\n",
        "user\n<tool_response>\nRain.\n</tool_response>\n"
        "<tool_response>\nError: No such city.\n</tool_response><|im_end|>\n",
        "user\nSo?<|im_end|>\n",
        "assistant\n",
    ]


@pytest.mark.parametrize("make", [ask, streamed])
async def test_why_it_ended(api: Api, client: anthropic.AsyncAnthropic, make: Any) -> None:
    api.engine.answer = lambda request, index: "one STOP two"
    answer = await make(client, stop_sequences=["never", "STOP"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "STOP")
    assert answer.content[0].text == "one "
    answer = await make(client, max_tokens=3)
    assert (answer.stop_reason, answer.content[0].text) == ("max_tokens", "one")
    api.engine.answer = lambda request, index: ""
    answer = await make(client)
    assert (answer.stop_reason, answer.content) == ("end_turn", [])


async def test_events(base_url: str, api: Api, tenant: TestTenant) -> None:
    api.engine.answer = lambda request, index: f"Well. {CALL}"
    body = asked({"tools": [WEATHER], "stream": True})
    async with httpx.AsyncClient() as http:
        answer = await http.post(
            f"{base_url}/v1/messages", headers={"x-api-key": tenant.key}, json=body
        )
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for text in answer.text.split("\n\n")[:-1]:
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    kinds = [event["type"] for event in events]
    assert [kind for kind in kinds if kind != "content_block_delta"] == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[0]["message"]["usage"]["output_tokens"] == 0  # it says nothing yet
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(each.get("text", "") for each in deltas) == "Well."
    assert json.loads("".join(each.get("partial_json", "") for each in deltas)) == {"city": "Köln"}
    assert events[-2]["usage"]["output_tokens"] == len(f"Well. {CALL}".encode()) + 1


async def test_a_last_turn_of_the_assistants_is_gone_on_with(
    api: Api, client: anthropic.AsyncAnthropic
) -> None:
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "{"}]
    await ask(client, messages=history)
    assert prompt_of(api).endswith("<|im_start|>assistant\n{")


async def test_turns_of_one_side_are_one(api: Api, client: anthropic.AsyncAnthropic) -> None:
    await ask(client, messages=[{"role": "user", "content": text} for text in ("One.", "Two.")])
    assert "user\nOne.\n\nTwo.<|im_end|>" in prompt_of(api)


async def test_tokens_are_counted_as_they_are_charged(
    api: Api, client: anthropic.AsyncAnthropic
) -> None:
    body = {"system": "Be brief.", "tools": [WEATHER]}
    hello: Any = [{"role": "user", "content": "Hi"}]
    tools: Any = [WEATHER]
    counted = await client.messages.count_tokens(
        model="fake-base", messages=hello, system="Be brief.", tools=tools
    )
    usage = (await ask(client, **body)).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


async def test_the_body_of_a_coding_agent(api: Api, base_url: str, tenant: TestTenant) -> None:
    """As Claude Code sends it: its own header line would keep prompts out of the prefix cache, and
    fields of betas are no reason to refuse."""
    evil = {"\u65b0\r\nx-evil": 1}  # what no header can hold
    body = asked(claude_code_body("fake-base", WEATHER, **evil))
    headers = {"authorization": f"Bearer {tenant.key}", **CLAUDE_CODE_HEADERS}
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{base_url}/v1/messages?beta=true", headers=headers, json=body)
    assert answer.status_code == 200, answer.text
    assert "event: message_stop" in answer.text
    warning = answer.headers["x-tenora-warning"]
    assert "???x-evil is ignored" in warning
    assert "web_search" in warning
    assert "diagnostics is ignored" in warning
    said = prompt_of(api)
    assert "billing-header" not in said
    assert "You are an agent." in said
    assert "Hm." not in said
    assert "get_weather" in said
    assert "web_search" not in said


async def test_failures(api: Api, client: anthropic.AsyncAnthropic) -> None:
    """Before the first event it is a status; behind it, an event."""
    api.engine.refusal = QueueFullError("full")
    with pytest.raises(anthropic.RateLimitError) as refused:
        await ask(client, stream=True)
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
    assert body["request_id"] == refused.value.request_id
    api.engine.refusal = None
    api.engine.answer = lambda request, index: "x" * 3000  # much is to come still
    api.engine.gate = gate = asyncio.Event()
    asking = asyncio.create_task(ask(client, stream=True, max_tokens=3500))
    await until(lambda: bool(api.engine.requests))
    gate.set()
    stream = await asking
    gate.clear()
    await api.engine.abort(api.engine.requests[-1].request_id)
    with pytest.raises(anthropic.APIStatusError) as failed:
        [event async for event in stream]
    body = failed.value.body
    assert (body["error"]["type"], body["error"]["code"]) == ("overloaded_error", "request_aborted")


async def test_whose_key_it_is(base_url: str, tenant: TestTenant) -> None:
    """An Authorization stands before an x-api-key; without either there is none."""
    async with httpx.AsyncClient(base_url=base_url, timeout=60) as http:
        for headers in ({}, {"x-api-key": "tn_wrong"}, {"x-api-key": ""}):
            answer = await http.post("/v1/messages", headers=headers, json=asked({}))
            assert answer.status_code == 401
            assert answer.json()["type"] == "error"
            assert answer.json()["error"]["type"] == "authentication_error"
        both = {"authorization": f"Bearer {tenant.key}", "x-api-key": "tn_wrong"}
        assert (await http.get("/v1/models", headers=both)).status_code == 200
        assert (await http.get("/v1/models", headers={"x-api-key": tenant.key})).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]},
            "messages[0].content[0].name",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{"url": "https://example.com"}]}, "mcp_servers"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
    ],
)
async def test_refusals(client: anthropic.AsyncAnthropic, body: dict[str, Any], param: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        await ask(client, **{"extra_body": body})
    said: Any = caught.value.body
    assert said["error"]["type"] == "invalid_request_error"
    assert said["error"]["param"] == param, said


async def test_a_schema_is_followed_and_a_tool_forced(
    api: Api, client: anthropic.AsyncAnthropic
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    await ask(client, extra_body={"output_config": config})
    grammar = api.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.text) == schema
    api.engine.answer = lambda request, index: CALL
    answer = await ask(client, tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"})
    assert api.engine.requests[-1].sampling.grammar is not None
    assert answer.content[0].type == "tool_use"
