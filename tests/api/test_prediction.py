"""OpenAI's `prediction`, with the official `openai` client: what reaches the engine, and what is
said of it afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from api_harness import Api
from served_api import HELLO, reset, served

WORDS = "The city of Köln."


@pytest.fixture(scope="module")
async def client(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    tenant = await api.new_tenant("prediction", plan="premium")
    async with (
        served(api) as url,
        openai.AsyncOpenAI(api_key=tenant.key, base_url=url, max_retries=0) as made,
    ):
        yield made


@pytest.mark.parametrize(
    "content",
    [WORDS, [{"type": "text", "text": "The city "}, {"type": "text", "text": "of Köln."}]],
)
async def test_it_reaches_the_engine(api: Api, client: openai.AsyncOpenAI, content: Any) -> None:
    reset(api.engine)
    answer = await client.chat.completions.create(
        model="fake-base", messages=HELLO, prediction={"type": "content", "content": content}
    )
    predicted = api.engine.requests[-1].prediction_token_ids
    assert api.engine.text.decode(predicted) == WORDS
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (3, 2)


@pytest.mark.parametrize("prediction", [{"type": "content"}, {"type": "x", "content": ""}, "words"])
async def test_what_is_none_is_refused(client: openai.AsyncOpenAI, prediction: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="fake-base", messages=HELLO, extra_body={"prediction": prediction}
        )
    assert str(refused.value.param).startswith("prediction")
