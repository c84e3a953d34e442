"""Long texts: what cannot fit is refused before a tokenizer sees it, what may fit is read beside
the event loop, and every request counts against its tenant's limit whatever becomes of it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from api_harness import Api, TestTenant
from served_api import HELLO, reset
from tenora_engine.text.processor import TextProcessor
from tenora_platform.errors import RateLimitedError
from tenora_platform.inference import token_routes
from tenora_platform.inference.schemas import ChatMessage
from tenora_platform.inference.tokenising import (
    TENANT_WAITING_MAX,
    LongTexts,
    count_characters,
    prompt_lengths,
)
from tenora_platform.state import AppState

SPACES = " " * 4_000_000


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    await api.put_plan("counted", {"requests_per_min": 1000})
    return await api.new_tenant(plan="counted")


async def requests_used(api: Api, tenant: TestTenant) -> int:
    limits = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    used: int = limits["requests_per_min"]["used"]
    return used


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SPACES}]}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": SPACES}]}]},
            "messages",
        ),
        ("/v1/completions", {"prompt": SPACES}, "prompt"),
        ("/v1/completions", {"prompt": ["a", SPACES]}, "prompt"),
        ("/v1/completions", {"prompt": [5] * 250_000}, "prompt"),
    ],
)
async def test_a_text_that_cannot_fit_never_meets_the_tokenizer(
    api: Api,
    tenant: TestTenant,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    param: str,
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(TextProcessor, "encode", lambda self, text, **_: calls.append(len(text)))
    answer = await api.call(
        tenant.key,
        "POST",
        path,
        content=json.dumps({"model": "fake-base", **body}),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text[:300]
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert error["message"].startswith("This model's maximum context length is 512 tokens.")
    assert calls == []
    assert await requests_used(api, tenant) == 1


async def test_what_is_refused_later_counts_too(api: Api, tenant: TestTenant) -> None:
    for body in ({"messages": HELLO, "model": "nobody"}, {"messages": HELLO, "stop": [""]}):
        answer = await api.call(
            tenant.key, "POST", "/v1/chat/completions", json={"model": "fake-base", **body}
        )
        assert answer.status_code in (400, 404), answer.text
    assert await requests_used(api, tenant) == 2


async def test_a_tenant_over_its_limit_costs_no_tokenizer(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.put_plan("none", {"requests_per_min": 1})
    tenant = await api.new_tenant(plan="none")
    path, body = "/v1/chat/completions", {"model": "fake-base", "messages": HELLO}
    assert (await api.call(tenant.key, "POST", path, json=body)).status_code == 200
    calls: list[int] = []
    monkeypatch.setattr(TextProcessor, "encode", lambda self, text, **_: calls.append(len(text)))
    refused = await api.call(tenant.key, "POST", path, json=body)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after-ms"]) > 1000
    assert calls == []


async def test_what_other_limits_refuse_has_its_request_back(api: Api) -> None:
    await api.put_plan("narrow", {"requests_per_min": 10, "parallel_requests": 0})
    tenant = await api.new_tenant(plan="narrow")
    for _ in range(3):
        body = {"model": "fake-base", "messages": HELLO}
        answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
        assert answer.status_code == 429
    assert await requests_used(api, tenant) == 0


async def test_others_stream_while_a_long_text_is_read(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long text's tokenizer is held until the other's stream has ended."""
    other = await api.new_tenant()
    encode, may_go_on, has_begun = TextProcessor.encode, threading.Event(), threading.Event()

    def slow(self: TextProcessor, text: str, add_special_tokens: bool = True) -> list[int]:
        if len(text) > 3000:
            has_begun.set()
            assert may_go_on.wait(20)
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(TextProcessor, "encode", slow)
    path, body = "/v1/chat/completions", {"model": "fake-base", "stream": True}
    long = [{"role": "user", "content": "x" * 4000}]  # too many tokens, but few enough characters
    reading = asyncio.create_task(
        api.call(tenant.key, "POST", path, json={**body, "messages": long})
    )
    await asyncio.to_thread(has_begun.wait, 20)
    answer = await api.call(other.key, "POST", path, json={**body, "messages": HELLO})
    assert answer.text.endswith("data: [DONE]\n\n")
    assert not reading.done()
    may_go_on.set()
    assert (await reading).status_code == 400


async def test_a_tenant_has_one_place_and_a_bounded_line() -> None:
    texts, go_on, running = LongTexts(places=2), threading.Event(), []

    def work() -> None:
        running.append(threading.get_ident())
        assert go_on.wait(20)

    mine = [asyncio.create_task(texts.run("mine", work)) for _ in range(TENANT_WAITING_MAX)]
    theirs = asyncio.create_task(texts.run("theirs", work))
    async with asyncio.timeout(10):
        while len(running) < 2:  # noqa: ASYNC110 - threads set no asyncio event
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert len(running) == 2  # one of each, whoever came first
    with pytest.raises(RateLimitedError, match="long prompts waiting to be tokenized"):
        await texts.run("mine", work)
    go_on.set()
    await asyncio.gather(*mine, theirs)
    assert await texts.run("mine", lambda: 5) == 5


@pytest.mark.parametrize("rests_when", ["made", "refused"])
async def test_a_tenant_whose_text_took_long_begins_the_next_one_later(
    rests_when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a factor of its own where the text was refused; and nobody else does."""
    factors = {"made": "REST_FACTOR", "refused": "REFUSED_REST_FACTOR"}
    for when, name in factors.items():
        factor = 1e9 if when == rests_when else 0.0
        monkeypatch.setattr(f"tenora_platform.inference.tokenising.{name}", factor)
    monkeypatch.setattr("tenora_platform.inference.tokenising.FREE_S", -1.0)
    texts = LongTexts()

    def made() -> int:
        return sum(range(1000))

    def refused() -> int:
        raise ValueError(made())

    async def take(what: str) -> None:
        if what == "made":
            assert await texts.run("mine", made) == 499500
        else:
            with pytest.raises(ValueError, match="499500"):
                await texts.run("mine", refused)

    other = "refused" if rests_when == "made" else "made"
    for what in (other, other, rests_when):
        await take(what)
    again = asyncio.create_task(texts.run("mine", made))
    assert await texts.run("theirs", lambda: 5) == 5
    assert not again.done()
    again.cancel()
    await asyncio.wait([again])


async def test_a_short_text_waits_for_no_rest() -> None:
    texts = LongTexts()
    for _ in range(3):
        assert await texts.run("mine", lambda: 5) == 5
    assert texts._rests == {}


async def test_what_is_made_of_a_long_text_is_written_beside_the_loop(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million tokens took the loop a seventh of a second."""
    threads = set[int]()
    answer_of = token_routes._answer

    def noted(state: AppState, token_ids: list[int], *, with_strings: bool) -> bytes:
        threads.add(threading.get_ident())
        return answer_of(state, token_ids, with_strings=with_strings)

    monkeypatch.setattr(token_routes, "_answer", noted)
    body = {"model": "fake-base", "prompt": "x y " * 1000}
    answer = await api.call(tenant.key, "POST", "/v1/tokenize", json=body)
    made = answer.json()
    assert (answer.status_code, made["count"]) == (200, len(made["tokens"]))
    assert threads
    assert threading.get_ident() not in threads


def test_characters_are_counted_wherever_they_are() -> None:
    message = ChatMessage.model_validate({"role": "user", "content": "abc", "more": {"d": ["ef"]}})
    assert count_characters([message]) == len("user" + "abc"), "what is ignored is not counted"
    assert count_characters([{"more": {"d": ["ef"]}}]) == len("more" + "d" + "ef")
    assert count_characters([[], {}, None, 1.5, 7, [[], []]]) == 7, "a template writes them all"
    assert prompt_lengths("abc") == [3]
    assert prompt_lengths([1, 2]) == [2]
    assert prompt_lengths(["a", "bc"]) == [1, 2]
    assert prompt_lengths([[1], [2, 3]]) == [1, 2]


def test_no_text_of_so_few_tokens_is_longer(api: Api, tmp_path: Path) -> None:
    """Every token of the vocabulary, on its own, is within what is said of its length."""
    text = api.engine.text
    for token in range(text.vocab_size):
        assert len(text.token_text(token)) <= text.characters_max(1)
    long = "word \u00e9" * 1000  # both ways of the library give the same tokens
    assert text.encode(long) == text._tokenizer.encode(long).ids
