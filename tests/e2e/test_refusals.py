"""What the running platform refuses, as the official client sees it: each error by its class, its
code and, where a client decides by it, its headers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from running_platform import Running
from tenora_platform.limits.scripts import WINDOW_MS


@pytest.fixture
async def acme(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    key = running.acme.key
    async with openai.AsyncOpenAI(base_url=running.api, api_key=key, max_retries=0) as api:
        yield api


async def test_an_unknown_key_is_401(running: Running) -> None:
    wrong = openai.AsyncOpenAI(base_url=running.api, api_key="tn_no_such_key", max_retries=0)
    async with wrong:
        with pytest.raises(openai.AuthenticationError):
            await wrong.completions.create(model="support", prompt="Hello")


async def test_another_tenants_adapter_is_404_as_one_that_is_nobodys(
    acme: openai.AsyncOpenAI,
) -> None:
    codes = []
    for model in ("extra", "nobody-has-this", "support@9"):
        with pytest.raises(openai.NotFoundError) as refused:
            await acme.completions.create(model=model, prompt="Hello")
        codes.append(refused.value.code)
    assert codes == ["model_not_found"] * 3


async def test_a_bad_body_and_a_long_context_are_400(acme: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await acme.completions.create(model="support", prompt="Hello", temperature=7)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refused:
        await acme.completions.create(model="support", prompt="Hello " * 9_000, max_tokens=1)
    assert refused.value.code == "context_length_exceeded"


async def test_above_the_plans_rate_is_429_that_says_when(running: Running) -> None:
    limits = {"limits": {"requests_per_min": 1}}
    assert running.admin("PUT", "/admin/v1/plans/one-a-minute", json=limits).is_success
    body = {"name": "slow", "plan": "one-a-minute"}
    tenant = running.admin("POST", "/admin/v1/tenants", json=body).json()["id"]
    key = running.admin("POST", f"/admin/v1/tenants/{tenant}/api_keys", json={}).json()["key"]
    async with openai.AsyncOpenAI(base_url=running.api, api_key=key, max_retries=0) as api:
        first = await api.completions.create(model=running.base_model, prompt="Hello", max_tokens=1)
        assert first.choices
        with pytest.raises(openai.RateLimitError) as refused:
            await api.completions.create(model=running.base_model, prompt="Hello", max_tokens=1)
    headers = refused.value.response.headers
    # What is read in a quarter of a second leaves together: up to a slot later than after a minute.
    assert 0 < int(headers["retry-after-ms"]) <= WINDOW_MS
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
