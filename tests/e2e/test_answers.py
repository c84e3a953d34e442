"""Answers through the whole platform equal transformers + peft, to the official client, for two
tenants at once; and what they cost is what was generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import openai
import pytest

from peft_reference import Reference
from running_platform import Running, RunningTenant, yesterday

QUESTIONS = [
    "What is the capital of France?",
    "Count from 1 to 12345 in big steps.",
    "Write one line about the sea.",
]
MAX_TOKENS = 24


@pytest.fixture
async def acme(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(running, running.acme) as api:
        yield api


@pytest.fixture
async def globex(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(running, running.globex) as api:
        yield api


def client(running: Running, tenant: RunningTenant) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=running.api, api_key=tenant.key, max_retries=0)


def user(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


async def stream_text(api: openai.AsyncOpenAI, model: str, question: str) -> tuple[str, Any]:
    parts, usage = [], None
    stream = await api.chat.completions.create(
        model=model,
        messages=user(question),
        temperature=0,
        max_tokens=MAX_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.choices:
            parts.append(chunk.choices[0].delta.content or "")
        usage = chunk.usage or usage
    return "".join(parts), usage


async def test_two_tenants_stream_their_own_support_at_once(
    running: Running,
    reference: Reference,
    acme: openai.AsyncOpenAI,
    globex: openai.AsyncOpenAI,
) -> None:
    jobs, expected = [], []
    for question in QUESTIONS:
        for api, model, adapter in (
            (acme, "support", "acme/support"),
            (globex, "support", "globex/support"),
            (globex, "extra", "globex/extra"),
            (acme, running.base_model, None),
        ):
            jobs.append(stream_text(api, model, question))
            expected.append((adapter, question))
    answers = await asyncio.gather(*jobs)
    texts = reference.chats(expected, MAX_TOKENS)
    for (text, usage), wanted, asked in zip(answers, texts, expected, strict=True):
        assert text == wanted, asked
        assert 0 < usage.completion_tokens <= MAX_TOKENS
    mine, theirs = answers[0][0], answers[1][0]
    assert mine != theirs, "two tenants' adapters of one name gave one answer"


async def test_logprobs_n_and_stop(globex: openai.AsyncOpenAI, reference: Reference) -> None:
    whole = reference.chat("globex/support", QUESTIONS[0], MAX_TOKENS)
    stop = whole[8:12]
    cut = await globex.chat.completions.create(
        model="support",
        messages=user(QUESTIONS[0]),
        temperature=0,
        max_tokens=MAX_TOKENS,
        stop=stop,
    )
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"

    several = await globex.chat.completions.create(
        model="support",
        messages=user(QUESTIONS[0]),
        temperature=0,
        max_tokens=8,
        n=3,
        logprobs=True,
        top_logprobs=4,
    )
    assert len(several.choices) == 3
    for choice in several.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        for token in choice.logprobs.content:
            assert len(token.top_logprobs) == 4
            assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)  # greedy
    assert several.usage is not None
    assert several.usage.completion_tokens == 24


async def test_a_beam_search_finds_what_transformers_find(
    globex: openai.AsyncOpenAI, reference: Reference
) -> None:
    for question in QUESTIONS:
        made = await globex.chat.completions.create(
            model="support",
            messages=user(question),
            n=2,
            max_tokens=MAX_TOKENS,
            extra_body={"use_beam_search": True, "best_of": 3},
        )
        texts = [choice.message.content for choice in made.choices]
        assert texts == reference.beams("globex/support", question, 3, 2, MAX_TOKENS)
        assert made.usage is not None
        assert made.usage.completion_tokens % 3 == 0


async def test_seed_repeats_and_differs(acme: openai.AsyncOpenAI) -> None:

    async def sample(seed: int) -> str:
        made = await acme.completions.create(
            model="support", prompt="The sea", max_tokens=16, temperature=1.0, seed=seed
        )
        return made.choices[0].text

    first, again, other = await asyncio.gather(sample(1), sample(1), sample(2))
    assert first == again
    assert first != other


async def test_the_prefix_is_cached_for_its_tenant_alone(
    running: Running, acme: openai.AsyncOpenAI, globex: openai.AsyncOpenAI
) -> None:
    prompt = "Once upon a time there was a lighthouse keeper who counted ships. " * 8

    async def cached(api: openai.AsyncOpenAI) -> int:
        made = await api.completions.create(
            model=running.base_model, prompt=prompt, max_tokens=2, temperature=0
        )
        assert made.usage is not None
        assert made.usage.prompt_tokens_details is not None
        return made.usage.prompt_tokens_details.cached_tokens or 0

    assert await cached(acme) == 0
    assert await cached(acme) > 0
    assert await cached(globex) == 0, "a prefix was shared across tenants"


async def test_every_token_is_billed_once(running: Running, acme: openai.AsyncOpenAI) -> None:
    before = await settled(running, running.acme)
    made = await acme.completions.create(
        model="support", prompt="One two three", max_tokens=5, temperature=0, n=2,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert made.usage is not None
    assert made.usage.completion_tokens == 10
    after = await settled(running, running.acme, above=before["output_tokens"])
    assert after["output_tokens"] - before["output_tokens"] == 10
    assert after["prompt_tokens"] - before["prompt_tokens"] == made.usage.prompt_tokens
    assert after["cost"] > before["cost"]


async def test_a_client_that_hangs_up_is_billed_for_what_it_got_and_frees_its_pages(
    running: Running, globex: openai.AsyncOpenAI
) -> None:
    before = await settled(running, running.globex)
    stream = await globex.completions.create(
        model="extra", prompt="Tell me everything", max_tokens=2000, temperature=0, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 5:
            break
    await stream.close()
    after = await settled(running, running.globex, above=before["output_tokens"])
    billed = after["output_tokens"] - before["output_tokens"]
    assert seen <= billed < 500
    engine = running.admin("GET", "/admin/v1/engine").json()
    pool = engine["replicas"][0]["pool"]
    assert pool["live_kv_pages"] == 0
    held = pool["live_kv_pages"] + pool["cached_kv_pages"] + pool["adapter_pages"]
    assert pool["free_pages"] + held == pool["total_pages"]


async def settled(running: Running, tenant: RunningTenant, above: int = -1) -> dict[str, Any]:
    """The tenant's usage and cost in all, once the output has risen above `above` and no longer
    moves: events travel from the engine through its outbox."""
    last: dict[str, Any] = {}
    for _ in range(100):
        now = totals(running, tenant)
        if now == last and now["output_tokens"] > above:
            return now
        last = now
        await asyncio.sleep(0.3)
    raise AssertionError(f"usage did not settle: {last}")


def totals(running: Running, tenant: RunningTenant) -> dict[str, Any]:
    query = {"start": yesterday(), "bucket": "1d"}
    usage = running.call(tenant.key, "GET", "/v1/usage", params=query).json()
    costs = running.call(tenant.key, "GET", "/v1/costs", params=query).json()
    rows = [row for bucket in usage["data"] for row in bucket["results"]]
    lines = [row for bucket in costs["data"] for row in bucket["results"]]
    return {
        "prompt_tokens": sum(row["prompt_tokens"] for row in rows),
        "output_tokens": sum(row["output_tokens"] for row in rows),
        "cost": sum((Decimal(row["amount"]) for row in lines), Decimal(0)),
    }
