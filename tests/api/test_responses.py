"""/v1/responses with the official `openai` client: text and tools, whole and streamed, and what the
model is asked. The path is that of chats, whose tests are elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace
from openai.types.responses import Response

from api_harness import Api, TestTenant
from served_api import reset, served, until
from tenora_engine.errors import QueueFullError

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
LOGPROBS: Any = ["message.output_text.logprobs"]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
async def base_url(api: Api) -> AsyncIterator[str]:
    async with served(api) as url:
        yield url


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("responses", plan="premium")


@pytest.fixture(scope="module")
async def client(base_url: str, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key=tenant.key, base_url=base_url, max_retries=0) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for tools in a prompt, a token a byte."""
    reset(api.engine)
    monkeypatch.setattr(api.engine, "model", replace(api.engine.model, context_tokens=4096))


async def ask(client: openai.AsyncOpenAI, **body: Any) -> Any:
    return await client.responses.create(**{"model": "fake-base", "input": "Hi", **body})


async def streamed(client: openai.AsyncOpenAI, **body: Any) -> Any:
    """What the client's own accumulation makes of a stream."""
    async with client.responses.stream(**{"model": "fake-base", "input": "Hi", **body}) as stream:
        return await stream.get_final_response()


def prompt_of(api: Api) -> str:
    token_ids = api.engine.requests[-1].prompt_token_ids
    return api.engine.text.decode(token_ids, skip_special=False)


@pytest.mark.parametrize("make", [ask, streamed])
async def test_text(api: Api, client: openai.AsyncOpenAI, make: Any) -> None:
    api.engine.answer = lambda request, index: "Grüße 👩‍🚀"
    answer = await make(
        client,
        instructions="Be brief.",
        max_output_tokens=100,
        temperature=0.5,
        top_p=0.9,
        metadata={"k": "v"},
        store=False,
    )
    assert answer.output_text == "Grüße 👩‍🚀"
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert answer.id.startswith("resp_")
    assert (answer.instructions, answer.max_output_tokens) == ("Be brief.", 100)
    assert (answer.metadata, answer.store) == ({"k": "v"}, False)
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    request = api.engine.requests[-1]
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)
    assert request.sampling.max_tokens == 100
    assert prompt_of(api) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert answer.usage.input_tokens == len(request.prompt_token_ids)
    assert answer.usage.output_tokens == len("Grüße 👩‍🚀".encode()) + 1
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


@pytest.mark.parametrize("make", [ask, streamed])
async def test_tools(api: Api, client: openai.AsyncOpenAI, make: Any) -> None:
    """A call, then its answer, with the first answer's items given back as they are."""
    api.engine.answer = lambda request, index: f"Let me see.\n{CALL}\n{CALL} There."
    first = await make(client, tools=[WEATHER])
    kinds = [item.type for item in first.output]
    assert kinds == ["message", "function_call", "function_call", "message"]
    assert [item.content[0].text for item in first.output if item.type == "message"] == [
        "Let me see.",
        "\n\n There.",  # the space that stood about the calls
    ]
    calls = [item for item in first.output if item.type == "function_call"]
    for call in calls:
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Köln"})
        assert call.status == "completed"
    assert len({item.id for item in first.output} | {call.call_id for call in calls}) == 6
    api.engine.answer = lambda request, index: "It rains."
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        *[item.model_dump() for item in first.output[:3]],
        *[
            {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
            for call in calls
        ],
    ]
    second = await make(client, input=history)
    assert second.output_text == "It rains."
    response = "<tool_response>\nRain.\n</tool_response>"
    assert prompt_of(api).split("<|im_start|>")[1:] == [
        "user\nWeather?<|im_end|>\n",
        f"assistant\nLet me see.\n{CALL}\n{CALL}<|im_end|>\n",
        f"user\n{response}\n{response}<|im_end|>\n",
        "assistant\n",
    ]


async def test_events(base_url: str, api: Api, tenant: TestTenant) -> None:
    api.engine.answer = lambda request, index: f"Well. {CALL}"
    body = {"model": "fake-base", "input": "Hi", "tools": [WEATHER], "stream": True}
    async with httpx.AsyncClient() as http:
        answer = await http.post(
            f"{base_url}/responses", headers={"authorization": f"Bearer {tenant.key}"}, json=body
        )
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for text in answer.text.split("\n\n")[:-1]:
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ]
    begun: list[str] = []  # each part is ended before what it is part of
    for event in events:
        kind, _, end = event["type"].rpartition(".")
        if end == "added" or (end == "delta" and begun[-1] != kind):
            begun.append(kind)
        elif end == "done":
            assert begun.pop() == kind
    assert not begun
    items = [event["item"]["type"] for event in events if event["type"].endswith("item.added")]
    assert items == ["message", "function_call"]
    text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert text == "Well."
    pieces = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert pieces == list('{"city": "Köln"}')  # a token a letter
    done = [event["item"] for event in events if event["type"].endswith("output_item.done")]
    assert events[-1]["response"]["output"] == done
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    Response.model_validate(events[-1]["response"])


async def test_what_is_cut_off_is_incomplete(api: Api, client: openai.AsyncOpenAI) -> None:
    events = [event async for event in await ask(client, max_output_tokens=5, stream=True)]
    assert events[-1].type == "response.incomplete"
    for answer in (await ask(client, max_output_tokens=5), events[-1].response):
        assert answer.status == "incomplete"
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert answer.output_text == "Hello"
        assert answer.output[0].status == "incomplete"


async def test_a_call_that_is_cut_off_is_incomplete(api: Api, client: openai.AsyncOpenAI) -> None:
    text = f"Well. {CALL}"
    api.engine.answer = lambda request, index: text
    body = {"tools": [WEATHER], "max_output_tokens": text.index("Köln")}
    events = [event async for event in await ask(client, **body, stream=True)]
    assert events[-1].type == "response.incomplete"
    (done,) = [event for event in events if event.type.endswith("arguments.done")]
    assert done.arguments == '{"city": "'
    for answer in (await ask(client, **body), events[-1].response):
        assert answer.status == "incomplete"
        message, call = answer.output
        assert (message.status, call.status) == ("completed", "incomplete")
        assert (call.name, call.arguments) == ("get_weather", '{"city": "')


@pytest.mark.parametrize("make", [ask, streamed])
async def test_nothing_said_is_an_empty_message(
    api: Api, client: openai.AsyncOpenAI, make: Any
) -> None:
    api.engine.answer = lambda request, index: ""
    empty = await make(client)
    assert (empty.output_text, empty.status, len(empty.output)) == ("", "completed", 1)


async def test_failures(api: Api, client: openai.AsyncOpenAI) -> None:
    """Before the first event it is a status; behind it, an event."""
    api.engine.refusal = QueueFullError("full")
    with pytest.raises(openai.RateLimitError):
        await ask(client, stream=True)
    api.engine.refusal = None
    api.engine.answer = lambda request, index: "x" * 3000  # much is to come still
    api.engine.gate = gate = asyncio.Event()
    asking = asyncio.create_task(ask(client, stream=True))
    await until(lambda: bool(api.engine.requests))
    gate.set()
    stream = await asking
    gate.clear()
    await api.engine.abort(api.engine.requests[-1].request_id)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "request_aborted"
    assert events[-1].response.status == "failed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"reasoning": "high"}, "reasoning"),
        ({"include": ["message.input_image.image_url"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": LOGPROBS}, "top_logprobs"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}, "input[0].input"),
        ({"input": [{"type": "local_shell_call", "call_id": "c"}]}, "input[0].action"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "local_shell"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": "x" * 100_000}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
    ],
)
async def test_refusals(client: openai.AsyncOpenAI, body: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, **body)
    assert caught.value.param == param


async def test_the_background_is_refused_in_words_that_clients_know(
    client: openai.AsyncOpenAI,
) -> None:
    for store, words in (
        (False, "only be used when `store` is true, and not"),
        (True, "supported"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            await ask(client, background=True, store=store)


@pytest.mark.parametrize("make", [ask, streamed])
async def test_the_texts_logprobs(api: Api, client: openai.AsyncOpenAI, make: Any) -> None:
    answer = await make(client, include=LOGPROBS, top_logprobs=2)
    assert api.engine.requests[-1].sampling.logprobs == 2
    [said] = answer.output[0].content
    assert bytes(value for each in said.logprobs for value in each.bytes).decode() == said.text
    assert all(each.top_logprobs and each.logprob <= 0 for each in said.logprobs)
    assert not (await make(client)).output[0].content[0].logprobs


async def test_a_streams_logprobs_come_with_their_text(client: openai.AsyncOpenAI) -> None:
    stream = await ask(client, include=LOGPROBS, stream=True)
    events = [each async for each in stream]
    deltas = [each for each in events if each.type == "response.output_text.delta"]
    for each in deltas:
        assert "".join(token.token for token in each.logprobs) == each.delta
    [done] = [each for each in events if each.type == "response.output_text.done"]
    told = [token.model_dump() for each in deltas for token in each.logprobs]
    assert [token.model_dump() for token in done.logprobs] == told


async def test_calls_have_no_logprobs(api: Api, client: openai.AsyncOpenAI) -> None:
    api.engine.answer = lambda request, index: f"Hm.{CALL}"
    answer = await ask(client, tools=[WEATHER], include=LOGPROBS, max_output_tokens=500)
    message, call = answer.output
    assert message.content[0].logprobs
    assert call.name == "get_weather"


async def test_how_tokens_are_chosen(api: Api, client: openai.AsyncOpenAI) -> None:
    said = {"top_k": 40, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 2**40}
    said |= {"presence_penalty": 0.5, "frequency_penalty": -0.5}
    await ask(client, extra_body=said)
    sampling = api.engine.requests[-1].sampling
    assert {name: getattr(sampling, name) for name in said} == said
    answer = await ask(client, extra_body={"stop": " from", "cache_salt": "s"})
    assert answer.output_text == "Hello"
    assert api.engine.requests[-1].cache_salt == "s"


async def test_template_arguments_reach_the_template(
    api: Api, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, given = api.engine.text.encode_chat, []

    def encoded(*args: Any, **named: Any) -> list[int]:
        given.append(named["template_arguments"])
        return encode(*args, **named)

    monkeypatch.setattr(api.engine.text, "encode_chat", encoded)
    await ask(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert given == [{"enable_thinking": False}]


@pytest.mark.parametrize("make", [ask, streamed])
async def test_the_tokens_of_both_sides(api: Api, client: openai.AsyncOpenAI, make: Any) -> None:
    """As vLLM tells them: of the whole prompt, and of the answer with what ended it."""
    api.engine.answer = lambda request, index: "Grüße"
    answer = await make(client, extra_body={"enable_response_messages": True})
    [given], [made] = answer.input_messages, answer.output_messages
    assert given == {
        "type": "raw_message_tokens",
        "message": prompt_of(api),
        "tokens": api.engine.requests[-1].prompt_token_ids,
    }
    assert api.engine.text.decode(made["tokens"], skip_special=False) == made["message"]
    assert made["message"] == "Grüße<|im_end|>"
    assert len(made["tokens"]) == answer.usage.output_tokens
    assert not {"input_messages", "output_messages"} & set((await make(client)).model_extra)


async def test_what_asks_for_nothing_is_accepted(client: openai.AsyncOpenAI) -> None:
    answer = await ask(
        client,
        store=False,
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        text={"format": {"type": "text"}, "verbosity": "medium"},
        tool_choice="auto",
        parallel_tool_calls=False,
        top_logprobs=0,
        extra_body={"previous_response_id": None, "reasoning": {"effort": "high"}},
    )
    assert answer.output_text == "Hello from base."
    assert not answer.parallel_tool_calls
