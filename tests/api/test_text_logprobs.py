"""Logprobs of completions whose tokens are parts of characters: a name for each token, and offsets
that lie within the text, whole and streamed alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.completion_choice import Logprobs

from api_harness import Api, TestTenant
from fake_engine import write_byte_tokenizer
from served_api import reset, served
from tenora_engine.events import TokenLogprob
from tenora_engine.text.processor import TextProcessor
from tenora_platform.inference.logprobs import PlacedToken, text_logprobs

HARD = "aé水🙂b".encode()  # 1, 2, 3, 4 and 1 bytes


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("text logprobs", plan="premium")


@pytest.fixture(scope="module")
async def url(api: Api) -> AsyncIterator[str]:
    async with served(api) as made:
        yield made


@pytest.fixture(scope="module")
async def client(url: str, tenant: TestTenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key=tenant.key, max_retries=0) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextProcessor:
    """A token a byte."""
    folder = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder)
    return TextProcessor(folder)


def ids_of(text: TextProcessor, raw: bytes) -> list[int]:
    by_bytes = {text.token_bytes(token): token for token in range(2, text.vocab_size)}
    return [by_bytes[bytes([byte])] for byte in raw]


async def asked(
    client: openai.AsyncOpenAI, text: TextProcessor, answer: bytes, **more: Any
) -> tuple[str, Logprobs]:
    """A completion of these bytes, whole and streamed, which say the same."""
    extra = {"allowed_token_ids": ids_of(text, answer)}
    body: dict[str, Any] = {
        "model": "fake-base", "prompt": "水", "logprobs": 1, "extra_body": extra, **more
    }  # fmt: skip
    whole = (await client.completions.create(**body)).choices[0]
    assert whole.logprobs is not None
    stream = await client.completions.create(**body, stream=True)
    said, streamed = "", Logprobs(tokens=[], token_logprobs=[], text_offset=[], top_logprobs=[])
    async for chunk in stream:
        for choice in chunk.choices:
            said += choice.text
            for name, values in vars(streamed).items():
                values += getattr(choice.logprobs, name)
            assert all(at <= len(said) for at in streamed.text_offset or [])
    assert said == whole.text
    assert streamed.model_dump() == whole.logprobs.model_dump()
    return whole.text, whole.logprobs


async def test_parts_of_characters_have_names_and_the_offset_of_their_character(
    client: openai.AsyncOpenAI, text: TextProcessor
) -> None:
    said, logprobs = await asked(client, text, HARD)
    assert said == "aé水🙂b"
    assert logprobs.tokens == [
        "a", r"bytes:\xc3", r"bytes:\xa9", r"bytes:\xe6", r"bytes:\xb0", r"bytes:\xb4",
        r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x99", r"bytes:\x82", "b",
    ]  # fmt: skip
    assert logprobs.text_offset == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4]
    assert logprobs.top_logprobs == [{name: -0.5} for name in logprobs.tokens]


async def test_an_echoed_prompt_stands_before_them(
    client: openai.AsyncOpenAI, text: TextProcessor
) -> None:
    said, logprobs = await asked(client, text, "é".encode(), echo=True)
    assert said == "水é"
    assert logprobs.text_offset == [0, 0, 0, 1, 1]


async def test_offsets_end_where_a_stop_string_cuts_the_text(
    client: openai.AsyncOpenAI, text: TextProcessor
) -> None:
    said, logprobs = await asked(client, text, "a水END!".encode(), stop=["END"])
    assert said == "a水"
    assert logprobs.text_offset == [0, 1, 1, 1, 2, 2, 2]


async def test_what_only_begins_a_stop_string_is_where_it_is(
    client: openai.AsyncOpenAI, text: TextProcessor
) -> None:
    said, logprobs = await asked(client, text, b"ENx", stop=["END"])
    assert (said, logprobs.text_offset) == ("ENx", [0, 1, 2])


async def test_bytes_that_are_no_text_count_as_they_are_shown(
    client: openai.AsyncOpenAI, text: TextProcessor
) -> None:
    said, logprobs = await asked(client, text, b"\xb4\xe6a\xf0")
    assert said == "��a�"
    assert logprobs.text_offset == [0, 1, 1, 3]


async def test_tokenize_names_them_too(url: str, tenant: TestTenant) -> None:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {tenant.key}"}) as http:
        body = {"model": "fake-base", "prompt": "a水", "return_token_strs": True}
        answer = await http.post(f"{url}/tokenize", json=body)
    assert answer.json()["token_strs"] == ["a", r"bytes:\xe6", r"bytes:\xb0", r"bytes:\xb4"]


@given(st.lists(st.integers(0, 255), min_size=1, max_size=12))
def test_every_row_has_an_entry_for_each_token(text: TextProcessor, raw: list[int]) -> None:
    """However few of them are characters, and whatever the texts of others look like."""
    ids = ids_of(text, bytes(dict.fromkeys(raw)))
    top = [(token, -float(at)) for at, token in enumerate(ids)]
    token = PlacedToken(ids[0], 0, TokenLogprob(ids[0], 0.0, top))
    (row,) = text_logprobs(text, [token]).top_logprobs
    assert row is not None
    assert sorted(row.values()) == sorted(logprob for _, logprob in top)


@given(st.binary(max_size=24))
def test_offsets_are_lengths_of_what_has_been_shown(text: TextProcessor, raw: bytes) -> None:
    """As a detokenizer gives the text, token by token."""
    offsets, shown, reader = text.offsets(), "", text.detokenizer()
    for token in ids_of(text, raw):
        assert offsets.place(token) == len(shown)
        shown += reader.push([token]).text
    assert offsets.end() == len(shown + reader.flush().text)
