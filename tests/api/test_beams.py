"""Beam search over HTTP: vLLM's fields, the best first, and what is refused by its name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from api_harness import Api, TestTenant
from served_api import openai_client, reset
from tenora_engine.request import BEAM_WIDTH_MAX, BeamSearch

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("beams", plan="premium")


@pytest.fixture(scope="module")
async def client(api: Api, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(api, tenant) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)
    api.engine.answer = lambda request, index: f"rank {index}"


async def complete(client: openai.AsyncOpenAI, **body: Any) -> Any:
    asked = {"prompt": "ab", "max_tokens": 9, "use_beam_search": True, **body}
    known = {key: asked.pop(key) for key in ("prompt", "max_tokens", "n", "best_of") & asked.keys()}
    return await client.completions.create(model="fake-base", extra_body=asked, **known)


async def chat(client: openai.AsyncOpenAI, **body: Any) -> Any:
    return await client.chat.completions.create(
        model="fake-base",
        messages=[{"role": "user", "content": "Hi"}],
        extra_body={"use_beam_search": True, **body},
    )


async def test_completions_are_the_best_in_the_order_of_the_search(
    client: openai.AsyncOpenAI, api: Api
) -> None:
    """The pretend engine gives each rank a likelier text than the one before; all are metered."""
    answer = await complete(client, prompt=["ab", "cd"], n=2, best_of=4, early_stopping="never")
    assert [choice.text for choice in answer.choices] == ["rank 0", "rank 1"] * 2
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == 8 * 7, "each text and what stops it"
    assert answer.usage.prompt_tokens == 4
    sampling = api.engine.requests[-1].sampling
    assert sampling.beams == BeamSearch(length_penalty=1.0, early_stopping="never")
    assert (sampling.n, sampling.temperature, sampling.logprobs) == (4, 0.0, None)


async def test_chats(client: openai.AsyncOpenAI, api: Api) -> None:
    answer = await chat(
        client, n=2, best_of=3, length_penalty=0.5, early_stopping=True, return_token_ids=True
    )
    texts = [choice.message.content for choice in answer.choices]
    assert texts == ["rank 0", "rank 1"]
    assert all(choice.token_ids for choice in answer.choices)
    sampling = api.engine.requests[-1].sampling
    assert sampling.beams == BeamSearch(length_penalty=0.5, early_stopping=True)
    assert sampling.n == 3
    assert (await chat(client, n=2)).usage.completion_tokens == 2 * 7
    assert api.engine.requests[-1].sampling.n == 2


async def test_neutral_values_and_what_goes_together(client: openai.AsyncOpenAI) -> None:
    neutral = {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0}
    others = {"min_tokens": 2, "ignore_eos": False, "stop_token_ids": [5], "logprobs": True}
    assert (await chat(client, **neutral, **others, tools=[TOOL])).choices[0].logprobs is not None
    assert (await complete(client, echo=True)).choices[0].text == "abrank 0"
    alone = {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False}
    assert (await chat(client, **alone)).choices[0].message.content == "rank 0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", True),
        ("temperature", 0.7),
        ("top_p", 0.9),
        ("top_k", 5),
        ("min_p", 0.1),
        ("seed", 1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 0.5),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"5": 1}),
        ("bad_words", ["no"]),
        ("allowed_token_ids", [5, 6]),
        ("stop", ["."]),
        ("stop_regex", ["."]),
        ("response_format", {"type": "json_object"}),
        ("guided_regex", "a+"),
    ],
)
async def test_what_does_not_go_together(
    client: openai.AsyncOpenAI, api: Api, name: str, value: Any
) -> None:
    for asking in (chat, complete):
        with pytest.raises(openai.BadRequestError) as caught:
            await asking(client, **{name: value})
        assert caught.value.param == name
        assert caught.value.code == "unsupported_parameter"
    assert not api.engine.requests


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("prediction", {"prediction": {"type": "content", "content": "x"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": "required"}),
        ("best_of", {"n": 3, "best_of": 2}),
        ("n", {"n": BEAM_WIDTH_MAX + 1}),
        ("best_of", {"best_of": BEAM_WIDTH_MAX + 1}),
        ("best_of", {"use_beam_search": False, "best_of": 2}),
        ("length_penalty", {"length_penalty": 11}),
        ("length_penalty", {"use_beam_search": False, "length_penalty": 2}),
        ("early_stopping", {"early_stopping": "always"}),
        ("early_stopping", {"use_beam_search": False, "early_stopping": "never"}),
    ],
)
async def test_what_a_chat_cannot_ask(
    client: openai.AsyncOpenAI, name: str, body: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await chat(client, **body)
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("echo", {"echo": True, "logprobs": 1}),
        ("max_tokens", {"max_tokens": 0}),
        ("n", {"n": BEAM_WIDTH_MAX + 1}),
        ("length_penalty", {"use_beam_search": False, "length_penalty": 0.5}),
    ],
)
async def test_what_a_completion_cannot_ask(
    client: openai.AsyncOpenAI, name: str, body: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await complete(client, **body)
    assert caught.value.param == name
