"""What the official `openai` client sees when something is wrong: bad bodies, unknown models and
keys, limits, an engine that refuses or fails midway, and what is left when a client hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from api_harness import Api, TestTenant
from served_api import HELLO, reset, served, until
from tenora_engine.errors import (
    ContextLengthError,
    DeadlineError,
    EngineUnavailableError,
    QueueFullError,
)
from tenora_engine.request import GenerationRequest


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


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag",
            "invalid_value",
        ),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"stop": ["a"] * 33}, "stop", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"temprature": 1}, "temprature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"repetition_penalty": 1e-6}, "repetition_penalty", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
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


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waited_in_vain(api: Api, tenant: TestTenant, stream: bool) -> None:
    """Whoever is refused after a while is told as if at once, and nothing is counted."""

    def refuse(request: GenerationRequest, index: int) -> str:
        raise DeadlineError("it waited in vain", 700)

    async def used() -> object:
        limits = (await api.call(tenant.key, "GET", "/v1/limits")).json()
        return [limits[name]["used"] for name in ("parallel_requests", "tokens_per_min")]

    before = await used()
    api.engine.answer = refuse
    body = {"model": "fake-base", "messages": HELLO, "stream": stream}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 429
    assert answer.headers["retry-after-ms"] == "700"
    assert answer.json()["error"]["code"] == "engine_overloaded"
    assert await used() == before


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


async def test_who_hangs_up_before_the_first_token_has_used_its_prompt(
    api: Api, base_url: str
) -> None:
    """The engine ran the prompt and bills it, so the limits count it; what it would have generated
    comes back."""
    await api.put_plan("scant", {"requests_per_min": 2, "tokens_per_min": 60})
    leaver = await api.new_tenant("leaver", plan="scant")
    api.engine.gate = asyncio.Event()
    body = {"model": "fake-base", "messages": HELLO, "max_tokens": 20}
    headers = {"authorization": f"Bearer {leaver.key}"}
    async with httpx.AsyncClient() as http:
        sending = asyncio.create_task(
            http.post(f"{base_url}/chat/completions", headers=headers, json=body, timeout=30)
        )
        await until(lambda: bool(api.engine.requests))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await until(lambda: bool(api.engine.aborted))
    prompt = len(api.engine.requests[-1].prompt_token_ids)
    limits: dict[str, Any] = {"parallel_requests": {"used": 1}}
    async with asyncio.timeout(10):
        while limits["parallel_requests"]["used"]:
            limits = (await api.call(leaver.key, "GET", "/v1/limits")).json()
    assert limits["requests_per_min"]["used"] == 1
    assert prompt - 15 <= limits["tokens_per_min"]["used"] <= prompt  # one comes back each second


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
