"""What an answer repeats of its prompt, in each of its choices: no more than a body could hold, and
nothing that the model was not shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from api_harness import Api, TestTenant
from served_api import openai_client, reset

LONG = "word " * 14_000  # 128 times it is more than a body
ASKED = {"role": "user", "content": "Hi"}
GO_ON = {"echo": True, "continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture(scope="module")
async def client(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    tenant: TestTenant = await api.new_tenant("echoes", plan="premium")
    async with openai_client(api, tenant) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for a long prompt, a token a byte."""
    reset(api.engine)
    monkeypatch.setattr(api.engine, "model", replace(api.engine.model, context_tokens=200_000))


async def chat(client: openai.AsyncOpenAI, text: str, **more: Any) -> Any:
    stream = more.pop("stream", False)
    messages: Any = [ASKED, {"role": "assistant", "content": text}]
    return await client.chat.completions.create(
        model="fake-base", messages=messages, max_tokens=1, stream=stream, extra_body=GO_ON | more
    )


async def complete(client: openai.AsyncOpenAI, text: str, **more: Any) -> Any:
    stream = more.pop("stream", False)
    return await client.completions.create(
        model="fake-base", prompt=text, max_tokens=1, stream=stream, extra_body=more
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("make", "more", "param"),
    [
        (chat, {"n": 128}, "echo"),
        (complete, {"n": 128, "echo": True}, "echo"),
        (complete, {"n": 1, "best_of": 128, "echo": True}, "echo"),
        (complete, {"n": 128, "return_token_ids": True}, "return_token_ids"),
    ],
)
async def test_choices_repeat_no_more_than_a_body_could_hold(
    client: openai.AsyncOpenAI,
    api: Api,
    make: Any,
    more: dict[str, Any],
    param: str,
    stream: bool,
) -> None:
    if stream and "best_of" in more:  # which are n, then
        more = more | {"n": 128}
    with pytest.raises(openai.BadRequestError, match="once for each choice") as caught:
        await make(client, LONG, stream=stream, **more)
    assert caught.value.param == param
    assert api.engine.requests == []


@pytest.mark.parametrize("make", [chat, complete])
async def test_a_long_echo_of_few_choices_is_given(client: openai.AsyncOpenAI, make: Any) -> None:
    answer = await make(client, LONG, n=2, **({} if make is chat else {"echo": True}))
    for choice in answer.choices:
        assert (choice.message.content if make is chat else choice.text).startswith(LONG)


async def test_what_the_model_was_not_shown_is_not_echoed(
    client: openai.AsyncOpenAI, api: Api
) -> None:
    api.engine.answer = lambda request, index: "!"
    answer = await chat(client, "abcdefgh", n=2, truncate_prompt_tokens=4)
    assert [each.message.content for each in answer.choices] == ["efgh!"] * 2
    answer = await chat(client, "abcdefgh", truncate_prompt_tokens=12)
    assert answer.choices[0].message.content == "abcdefgh!"
    with pytest.raises(openai.BadRequestError) as caught:
        await chat(client, "abcdefgh", truncate_prompt_tokens=4, truncation_side="right")
    assert caught.value.param == "echo"
