"""instructor over the openai client, in those of its modes that send a schema for the answer to be
held to. In `JSON` and `MD_JSON` the model is only told of it, which this one does not heed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from client_checks import PERSON_QUESTION, TOKENS, Person, Tenora

instructor = pytest.importorskip("instructor", reason="run `make clients`")
core = pytest.importorskip("instructor.core")
openai = pytest.importorskip("openai")

MODES = ("TOOLS", "JSON_SCHEMA", "RESPONSES_TOOLS")


@pytest.fixture
def client(tenora: Tenora) -> Iterator[Any]:
    with openai.OpenAI(base_url=tenora.url, api_key=tenora.key, max_retries=0) as api:
        yield api


@pytest.fixture
def asked(tenora: Tenora) -> dict[str, Any]:
    return {
        "model": tenora.model,
        "messages": [{"role": "user", "content": PERSON_QUESTION}],
        "temperature": 0,
        "max_tokens": TOKENS,
        "max_retries": 0,
    }


def patched(client: Any, mode: str) -> Any:
    return instructor.from_openai(client, mode=getattr(instructor.Mode, mode))


@pytest.mark.parametrize("mode", MODES)
def test_a_model_is_made(client: Any, asked: dict[str, Any], mode: str) -> None:
    person, raw = patched(client, mode).create_with_completion(response_model=Person, **asked)
    assert isinstance(person, Person)
    assert raw.usage.total_tokens


@pytest.mark.parametrize("mode", MODES)
def test_a_model_is_streamed(client: Any, asked: dict[str, Any], mode: str) -> None:
    *_, last = patched(client, mode).create_partial(response_model=Person, **asked)
    Person.model_validate(last.model_dump())


@pytest.mark.parametrize("mode", ["TOOLS", "JSON"])
def test_without_a_model_it_is_a_chat(client: Any, asked: dict[str, Any], mode: str) -> None:
    asked["max_tokens"] = 24
    whole = patched(client, mode).create(response_model=None, **asked)
    stream = patched(client, mode).create(response_model=None, stream=True, **asked)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert said == whole.choices[0].message.content


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_says_why(client: Any, asked: dict[str, Any], mode: str) -> None:
    asked["temperature"] = 7
    with pytest.raises(core.InstructorRetryException, match=r"400.*less than or equal to 2"):
        patched(client, mode).create(response_model=Person, **asked)
