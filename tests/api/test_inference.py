"""The official `openai` client against a real server on a loopback port, with a fake engine."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from tenora_engine.errors import ContextLengthError, EngineUnavailableError, QueueFullError
from tenora_engine.request import GenerationRequest
from tenora_platform.inference.schemas import ChatCompletionChunk, Completion

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


async def until(condition: Callable[[], bool]) -> None:
    """What is waited for happens on the other side of a socket, so there is no event to await."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
async def base_url(api: Api) -> AsyncIterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(api.app, lifespan="off", log_level="error")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.should_exit = True
        await serving


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("inference", plan="premium")


@pytest.fixture(scope="module")
async def client(base_url: str, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key=tenant.key, base_url=base_url, max_retries=0) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    engine = api.engine
    fake: Any = type(engine)
    engine.answer = fake.__init__.__globals__["default_answer"]
    engine.gate = None
    engine.refusal = None
    engine.requests.clear()
    engine.aborted.clear()


async def test_chat(api: Api, client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="fake-base", messages=HELLO, max_completion_tokens=100, user="u1"
    )
    answer = raw.parse()
    assert answer.object == "chat.completion"
    assert answer.model == "fake-base"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Hello from base."
    assert answer.choices[0].finish_reason == "stop"
    request = api.engine.requests[-1]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(request.prompt_token_ids)
    assert answer.usage.completion_tokens == len("Hello from base.") + 1  # the stopping token
    assert answer.usage.total_tokens == (
        answer.usage.prompt_tokens + answer.usage.completion_tokens
    )
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert raw.headers["x-request-id"]
    assert raw.headers["x-tenora-tier"] == "priority"
    assert "x-tenora-adapter" not in raw.headers
    assert request.context["model"] == "fake-base"


async def test_content_parts_and_developer(api: Api, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(
        model="fake-base",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ],
    )
    prompt = api.engine.text.decode(api.engine.requests[-1].prompt_token_ids, skip_special=False)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_chat_stream_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="fake-base", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "Hello from base."
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 17


async def test_stream_on_the_wire(base_url: str, tenant: TestTenant) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(
            f"{base_url}/chat/completions",
            headers={"authorization": f"Bearer {tenant.key}"},
            json={
                "model": "fake-base",
                "messages": HELLO,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    schema = TypeAdapter(ChatCompletionChunk)
    for event in events[:-2]:
        chunk = json.loads(event.removeprefix("data: "))
        schema.validate_python(chunk)
        assert "usage" in chunk
        for choice in chunk["choices"]:
            assert {"index", "delta", "finish_reason"} <= choice.keys()


async def test_text_that_is_not_ascii(api: Api, client: openai.AsyncOpenAI) -> None:
    """One token a byte: no chunk may hold half a character."""
    api.engine.answer = lambda request, index: "Grüße 👩‍🚀 日本"
    stream = await client.chat.completions.create(model="fake-base", messages=HELLO, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == "Grüße 👩‍🚀 日本"
    assert not any("\ufffd" in piece for piece in pieces)


async def test_n(api: Api, client: openai.AsyncOpenAI) -> None:
    api.engine.answer = lambda request, index: f"answer {index}"
    answer = await client.chat.completions.create(model="fake-base", messages=HELLO, n=3)
    assert [choice.message.content for choice in answer.choices] == [
        "answer 0",
        "answer 1",
        "answer 2",
    ]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3 * 9
    assert answer.usage.prompt_tokens == len(api.engine.requests[-1].prompt_token_ids)
    stream = await client.chat.completions.create(
        model="fake-base", messages=HELLO, n=2, stream=True
    )
    texts = {0: "", 1: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "answer 0", 1: "answer 1"}


async def test_logprobs(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="fake-base", messages=HELLO, logprobs=True, top_logprobs=1
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(token.token for token in logprobs.content) == "Hello from base."
    assert logprobs.content[0].bytes == [ord("H")]
    assert logprobs.content[0].logprob == -0.5
    assert logprobs.content[0].top_logprobs[0].token == "H"
    text = await client.completions.create(model="fake-base", prompt="x", logprobs=1)
    lists = text.choices[0].logprobs
    assert lists is not None
    assert lists.tokens == list("Hello from base.")
    assert lists.text_offset == list(range(16))
    assert lists.token_logprobs == [-0.5] * 16
    assert lists.top_logprobs is not None
    assert lists.top_logprobs[0] == {"H": -0.5}


async def test_streamed_logprobs_lose_none(client: openai.AsyncOpenAI) -> None:
    """Tokens whose text is held back (a possible stop string) keep their logprobs."""
    stream = await client.chat.completions.create(
        model="fake-base", messages=HELLO, stream=True, logprobs=True, stop=["lo there"]
    )
    tokens = [
        token.token
        async for chunk in stream
        if chunk.choices[0].logprobs and chunk.choices[0].logprobs.content
        for token in chunk.choices[0].logprobs.content
    ]
    assert "".join(tokens) == "Hello from base."


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_string(api: Api, client: openai.AsyncOpenAI, stream: bool) -> None:
    api.engine.answer = lambda request, index: "one two three four"
    if stream:
        chunks = await client.chat.completions.create(
            model="fake-base",
            messages=HELLO,
            stop=["three", "zzz"],
            stream=True,
            stream_options={"include_usage": True},
        )
        seen = [chunk async for chunk in chunks]
        text = "".join(c.choices[0].delta.content or "" for c in seen if c.choices)
        reasons = [c.choices[0].finish_reason for c in seen if c.choices]
        usage = seen[-1].usage
    else:
        answer = await client.chat.completions.create(
            model="fake-base", messages=HELLO, stop=["three", "zzz"]
        )
        text = answer.choices[0].message.content or ""
        reasons = [answer.choices[0].finish_reason]
        usage = answer.usage
    assert text == "one two "
    assert reasons[-1] == "stop"
    assert usage is not None
    assert usage.completion_tokens == len("one two three")
    assert [entry[1:] for entry in api.engine.aborted] == [(0, "stop")]


async def test_length_and_extra_parameters(api: Api, client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="fake-base",
        prompt="abc",
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        presence_penalty=0.25,
        frequency_penalty=0.5,
        logit_bias={"5": -100},
        extra_body={
            "top_k": 3,
            "min_p": 0.1,
            "repetition_penalty": 1.5,
            "ignore_eos": True,
            "stop_token_ids": [9],
        },
    )
    assert answer.choices[0].text == "Hello"
    assert answer.choices[0].finish_reason == "length"
    sampling = api.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 3)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.1, 1.5, 7)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, 0.5)
    assert sampling.ignore_eos
    assert sampling.stop_token_ids == (9,)
    assert sampling.logit_bias == {5: -100}
    assert sampling.max_tokens == 5


async def test_completion_prompts_and_echo(api: Api, client: openai.AsyncOpenAI) -> None:
    def answer(request: GenerationRequest, index: int) -> str:
        return api.engine.text.decode(request.prompt_token_ids).upper() + str(index)

    api.engine.answer = answer
    ids = [api.engine.text.encode("cd"), api.engine.text.encode("ef")]
    texts = await client.completions.create(model="fake-base", prompt=["ab", "xyz"], n=2, echo=True)
    assert [choice.text for choice in texts.choices] == ["abAB0", "abAB1", "xyzXYZ0", "xyzXYZ1"]
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert texts.usage is not None
    assert texts.usage.prompt_tokens == 5
    one = await client.completions.create(model="fake-base", prompt=ids[0])
    assert one.choices[0].text == "CD0"
    both = await client.completions.create(model="fake-base", prompt=ids)
    assert [choice.text for choice in both.choices] == ["CD0", "EF0"]
    stream = await client.completions.create(
        model="fake-base", prompt=["ab", "xyz"], stream=True, echo=True
    )
    streamed = {0: "", 1: ""}
    async for chunk in stream:
        Completion.model_validate(chunk.model_dump())
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == {0: "abAB0", 1: "xyzXYZ0"}


async def test_models_and_adapter_headers(
    api: Api, client: openai.AsyncOpenAI, tenant: TestTenant
) -> None:
    made = await api.call(
        tenant.key, "POST", "/v1/adapters", files=adapter_form(api.engine.model, "support")
    )
    assert made.status_code == 202, made.text
    version = made.json()
    while version["state"] in ("quarantined", "validating"):
        await asyncio.sleep(0.05)
        path = "/v1/adapters/support/versions/1"
        version = (await api.call(tenant.key, "GET", path)).json()
    assert version["state"] == "active", version
    assert {model.id async for model in client.models.list()} == {"fake-base", "support"}
    api.engine.where[version["digest"]] = "host"
    raw = await client.chat.completions.with_raw_response.create(model="support", messages=HELLO)
    assert raw.headers["x-tenora-adapter"] == "support@1"
    assert raw.headers["x-tenora-adapter-digest"] == version["digest"]
    assert raw.headers["x-tenora-residency"] == "host"
    assert raw.parse().choices[0].message.content == f"Hello from {version['digest'][7:15]}."
    assert api.engine.requests[-1].context["adapter_version_id"] == version["id"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"stop": list("abcde")}, "stop", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"temprature": 1}, "temprature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"max_tokens": 100_000}, "max_tokens", "context_length_exceeded"),
        ({"messages": []}, "messages", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": "x" * 600}]},
            "messages",
            "context_length_exceeded",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
    ],
)
async def test_bad_requests(
    client: openai.AsyncOpenAI, body: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="fake-base", messages=HELLO, extra_body=body)
    assert caught.value.param == param
    assert caught.value.code == code


async def test_other_errors(api: Api, base_url: str, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="nobody", messages=HELLO)
    assert missing.value.code == "model_not_found"
    async with openai.AsyncOpenAI(api_key="sk-wrong", base_url=base_url) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model="fake-base", messages=HELLO)
    for refusal, expected in (
        (QueueFullError("full", 1500), openai.RateLimitError),
        (ContextLengthError("too long", "prompt"), openai.BadRequestError),
        (EngineUnavailableError("gone"), openai.InternalServerError),
    ):
        api.engine.refusal = refusal
        for stream in (False, True):
            with pytest.raises(expected):
                await client.chat.completions.create(
                    model="fake-base", messages=HELLO, stream=stream
                )


async def test_rate_limit(api: Api, base_url: str) -> None:
    await api.put_plan("tiny", {"requests_per_min": 2})
    poor = await api.new_tenant("poor", plan="tiny")
    async with openai.AsyncOpenAI(api_key=poor.key, base_url=base_url, max_retries=0) as limited:
        raw = await limited.chat.completions.with_raw_response.create(
            model="fake-base", messages=HELLO
        )
        assert raw.headers["x-ratelimit-limit-requests"] == "2"
        assert raw.headers["x-ratelimit-remaining-requests"] == "1"
        await limited.chat.completions.create(model="fake-base", messages=HELLO)
        with pytest.raises(openai.RateLimitError) as caught:
            await limited.chat.completions.create(model="fake-base", messages=HELLO, stream=True)
    assert int(caught.value.response.headers["retry-after-ms"]) > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens_before", [0, 3])
async def test_client_that_hangs_up(
    api: Api, base_url: str, tenant: TestTenant, stream: bool, tokens_before: int
) -> None:
    """The sequence is aborted though nothing is being sent, and the place is free again."""
    gate = asyncio.Event()
    api.engine.gate = gate
    body = {"model": "fake-base", "messages": HELLO, "stream": stream}
    headers = {"authorization": f"Bearer {tenant.key}"}
    async with httpx.AsyncClient() as http:
        sending = asyncio.create_task(
            http.post(f"{base_url}/chat/completions", headers=headers, json=body, timeout=30)
        )
        await until(lambda: bool(api.engine.requests))
        if tokens_before:
            gate.set()
            await asyncio.sleep(0)
            gate.clear()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    request_id = api.engine.requests[-1].request_id
    await until(lambda: any(entry[0] == request_id for entry in api.engine.aborted))
    assert {entry[2] for entry in api.engine.aborted} == {"client_gone"}

    async def places_used() -> int:
        limits = (await api.call(tenant.key, "GET", "/v1/limits")).json()
        return int(limits["parallel_requests"]["used"])

    async with asyncio.timeout(10):
        while await places_used():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_failure_in_the_middle(api: Api, client: openai.AsyncOpenAI) -> None:
    def fail_late(request: GenerationRequest, index: int) -> str:
        if index == 1:
            raise QueueFullError("lost in the middle")
        return "fine"

    api.engine.answer = fail_late
    stream = await client.chat.completions.create(
        model="fake-base", messages=HELLO, n=2, stream=True
    )
    with pytest.raises(openai.APIError, match="lost in the middle"):
        async for _ in stream:
            pass
