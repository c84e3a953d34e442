"""The official `openai` client against a real server on a loopback port, with a fake engine: what
is answered, whole and streamed. Refusals and failures are in test_inference_errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from pydantic import TypeAdapter

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from served_api import HELLO, reset, served
from tenora_engine.request import GenerationRequest
from tenora_platform.inference.schemas import ChatCompletionChunk, Completion


@pytest.fixture(scope="module")
async def base_url(api: Api) -> AsyncIterator[str]:
    async with served(api) as url:
        yield url


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("inference", plan="premium")


@pytest.fixture(scope="module")
async def client(base_url: str, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key=tenant.key, base_url=base_url, max_retries=0) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


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
    context = request.context
    assert (context["model"], context["asked_model"]) == ("fake-base", "fake-base")
    assert (context["alias"], context["adapter_id"], context["max_tokens"]) == ("", "", "100")


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
    assert lists.tokens == [*"Hello from base.", "<|im_end|>"]  # the one that ended it, as vLLM's
    assert lists.text_offset == list(range(17))
    assert lists.token_logprobs is not None
    assert lists.token_logprobs[:16] == [-0.5] * 16
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
    prod = {"targets": [{"version": 1, "weight": 100}]}
    await api.call(tenant.key, "PUT", "/v1/adapters/support/aliases/prod", json=prod)
    for name in ("support", "support@1", "support@prod"):
        card = await client.models.retrieve(name)
        assert (card.id, card.model_extra["version"]) == (name, 1)  # type: ignore[index]
    assert (await client.models.retrieve("fake-base")).id == "fake-base"
    for name in ("support@2", "support@none", "nobody", "a/b"):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve(name)
        assert missing.value.code == "model_not_found"
    api.engine.where[version["digest"]] = "host"
    raw = await client.chat.completions.with_raw_response.create(model="support", messages=HELLO)
    assert raw.headers["x-tenora-adapter"] == "support@1"
    assert raw.headers["x-tenora-adapter-digest"] == version["digest"]
    assert raw.headers["x-tenora-residency"] == "host"
    assert raw.parse().choices[0].message.content == f"Hello from {version['digest'][7:15]}."
    context = api.engine.requests[-1].context
    assert context["adapter_version_id"] == version["id"]
    assert context["adapter_id"] == version["adapter_id"]
    assert (context["asked_model"], context["alias"]) == ("support", "prod")
    await client.chat.completions.create(
        model="support@1", messages=HELLO, max_tokens=7, service_tier="flex"
    )
    context = api.engine.requests[-1].context
    assert (context["asked_model"], context["alias"]) == ("support@1", "")
    assert (context["asked_tier"], context["max_tokens"]) == ("flex", "7")
