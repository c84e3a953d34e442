"""What is told of prompts beside what follows them: the logprobs of an echo, as harnesses for
evaluation ask for them, and embeddings; and the best of several answers."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator, Sequence

import httpx
import openai
import pytest

from api_harness import Api, TestTenant
from fake_engine import default_answer
from served_api import openai_client, reset
from tenora_engine.events import TokenLogprob
from tenora_platform.inference.logprobs import SLICE_TOKENS, TextScores


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("scores", plan="premium")


@pytest.fixture(scope="module")
async def client(api: Api, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(api, tenant) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


async def test_an_echo_has_logprobs(client: openai.AsyncOpenAI, api: Api) -> None:
    """As lm-evaluation-harness asks: one token more, and lists that begin with the prompt."""
    api.engine.answer = lambda request, index: "!?"
    answer = await client.completions.create(
        model="fake-base", prompt=["abc", "x"], echo=True, logprobs=1, max_tokens=1
    )
    first, second = answer.choices
    assert (first.text, second.text) == ("abc!", "x!")
    assert first.logprobs is not None
    assert first.logprobs.tokens == ["a", "b", "c", "!"]
    assert first.logprobs.token_logprobs == [None, -1.0, -1.0, -0.5]
    assert first.logprobs.top_logprobs == [None, {"b": -1.0}, {"c": -1.0}, {"!": -0.5}]
    assert first.logprobs.text_offset == [0, 1, 2, 3]
    assert second.logprobs is not None
    assert second.logprobs.token_logprobs == [None, -0.5]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 2)


async def test_a_prompt_is_scored_once_for_all_its_choices(
    client: openai.AsyncOpenAI, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some tokens at a time, between which others are served."""
    written: list[int] = []
    add = TextScores.add

    def counted(self: TextScores, tokens: Sequence[TokenLogprob]) -> None:
        written.append(len(tokens))
        add(self, tokens)

    monkeypatch.setattr(TextScores, "add", counted)
    prompt = "abc" * 60
    answer = await client.completions.create(
        model="fake-base", prompt=prompt, echo=True, logprobs=1, max_tokens=1, n=4
    )
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert len(choice.logprobs.token_logprobs or ()) == len(prompt) + 1
        assert choice.logprobs.text_offset == list(range(len(prompt) + 1))
    of_prompt = [count for count in written if count > 1]
    assert of_prompt == [SLICE_TOKENS, SLICE_TOKENS, len(prompt) - 1 - 2 * SLICE_TOKENS]


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
async def test_no_answer_holds_more_scores_than_are_given(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr("tenora_platform.inference.logprobs.PROMPT_SCORES_MAX", 23)

    async def ask(n: int) -> object:
        more = {"echo": True, field: 1}
        return await client.completions.create(
            model="fake-base", prompt="abcd", max_tokens=1, n=n, extra_body=more
        )

    assert await ask(2)
    with pytest.raises(
        openai.BadRequestError, match="log probabilities of prompt tokens"
    ) as caught:
        await ask(3)
    assert caught.value.param == field


async def test_the_prompt_alone(client: openai.AsyncOpenAI, api: Api) -> None:
    answer = await client.completions.create(
        model="fake-base", prompt="abc", echo=True, logprobs=0, max_tokens=0
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -1.0, -1.0]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)
    assert api.engine.requests[-1].sampling.max_tokens == 0


async def test_a_streamed_echo_is_the_whole_one(client: openai.AsyncOpenAI) -> None:
    asked = {"model": "fake-base", "prompt": "abc", "echo": True, "logprobs": 1, "n": 2}
    whole = await client.completions.create(**asked)  # type: ignore[call-overload]
    stream = await client.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    texts = ["", ""]
    tokens: list[list[str]] = [[], []]
    logprobs: list[list[float | None]] = [[], []]
    offsets: list[list[int]] = [[], []]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.tokens
                logprobs[choice.index] += choice.logprobs.token_logprobs
                offsets[choice.index] += choice.logprobs.text_offset
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        assert tokens[choice.index] == choice.logprobs.tokens
        assert logprobs[choice.index] == choice.logprobs.token_logprobs
        assert offsets[choice.index] == choice.logprobs.text_offset


async def test_the_best_of_several(client: openai.AsyncOpenAI, api: Api) -> None:
    """The pretend engine is surer of each sequence than of the one before; all are paid for."""
    api.engine.answer = lambda request, index: default_answer(request, index)[:3] + str(index)
    answer = await client.completions.create(
        model="fake-base", prompt=["ab", "cd"], n=2, best_of=4, max_tokens=4
    )
    assert [choice.text[-1] for choice in answer.choices] == ["3", "2", "3", "2"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.logprobs is None for choice in answer.choices)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8 * 5, "four letters each, and what stops them"


async def test_embeddings(client: openai.AsyncOpenAI, api: Api) -> None:
    """Of length 1, in the order of the texts. The client itself asks for base64."""
    made = await client.embeddings.create(model="fake-base", input=["abcd", "x" * 3])
    assert [each.index for each in made.data] == [0, 1]
    assert made.data[0].embedding == pytest.approx([0.6, 0.8])
    assert made.data[1].embedding == pytest.approx([0.5**0.5, 0.5**0.5])
    assert (made.usage.prompt_tokens, made.usage.total_tokens) == (7, 7)
    asked = api.engine.requests[-1].sampling
    assert (asked.embeds, asked.max_tokens, asked.n) == (True, 0, 1)
    ids = api.engine.text.encode("abcd")
    again = await client.embeddings.create(model="fake-base", input=ids, encoding_format="float")
    assert again.data[0].embedding == pytest.approx([0.6, 0.8])


async def ask(api: Api, tenant: TestTenant, **body: object) -> httpx.Response:
    asked = {"model": "fake-base", "input": "abcd", **body}
    return await api.call(tenant.key, "POST", "/v1/embeddings", json=asked)


async def test_the_forms_of_embeddings(api: Api, tenant: TestTenant) -> None:
    answer = await ask(api, tenant, encoding_format="base64", dimensions=api.engine.model.hidden)
    raw = base64.b64decode(answer.json()["data"][0]["embedding"])
    assert struct.unpack("<2f", raw) == pytest.approx((0.6, 0.8))
    assert (await ask(api, tenant)).json()["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    cut = await ask(api, tenant, input="x" * 2000, truncate_prompt_tokens=-1)
    assert cut.json()["usage"]["prompt_tokens"] == api.engine.model.context_tokens


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [99999]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"dimensions": 3}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"model": "nobody"}, "model"),
        ({"n": 2}, "n"),
    ],
)
async def test_what_has_no_embedding(
    api: Api, tenant: TestTenant, body: dict[str, object], param: str
) -> None:
    answer = await ask(api, tenant, **body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param, answer.text
