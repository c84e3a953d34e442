"""LangChain's ChatOpenAI and OpenAIEmbeddings, over chats and over responses."""

from __future__ import annotations

from typing import Any

import pytest

from client_checks import (
    HIDDEN,
    PERSON_QUESTION,
    TOKENS,
    WEATHER_QUESTION,
    WEATHER_TOOL,
    Person,
    Tenora,
    Weather,
)

langchain = pytest.importorskip("langchain_openai", reason="run `make clients`")


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def model(request: pytest.FixtureRequest, tenora: Tenora) -> Any:
    return langchain.ChatOpenAI(
        base_url=tenora.url,
        api_key=tenora.key,
        model=tenora.model,
        temperature=0,
        max_tokens=TOKENS,
        max_retries=0,
        stream_usage=True,  # LangChain's default only where the address is OpenAI's
        use_responses_api=request.param,
    )


def joined(stream: Any) -> Any:
    """The whole message of a stream's chunks."""
    whole, *rest = stream
    for chunk in rest:
        whole += chunk
    return whole


def test_a_chat_whole_and_streamed(model: Any) -> None:
    messages = [("system", "Be brief."), ("user", "Say hello.")]
    whole = model.invoke(messages, max_tokens=24)
    streamed = joined(model.stream(messages, max_tokens=24))
    assert whole.text
    assert streamed.text == whole.text
    for said in (whole, streamed):
        used = said.usage_metadata
        assert 0 < used["output_tokens"] <= 24
        assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"]


@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_a_forced_call_whole_and_streamed(model: Any, choice: str) -> None:
    bound = model.bind_tools([WEATHER_TOOL], tool_choice=choice, parallel_tool_calls=False)
    for said in (bound.invoke(WEATHER_QUESTION), joined(bound.stream(WEATHER_QUESTION))):
        (call,) = said.tool_calls
        assert call["name"] == "get_weather"
        Weather.model_validate(call["args"])
        assert not said.invalid_tool_calls


def test_what_a_tool_answered(model: Any) -> None:
    """The call as LangChain gives it back, and the tool's answer behind it."""
    bound = model.bind_tools([Weather], tool_choice="any", strict=True, parallel_tool_calls=False)
    said = bound.invoke(WEATHER_QUESTION)
    (call,) = said.tool_calls
    history: list[Any] = [("user", WEATHER_QUESTION), said]
    history.append({"role": "tool", "tool_call_id": call["id"], "content": "18 degrees, sunny"})
    assert model.bind_tools([Weather]).invoke(history).text


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model: Any, method: str) -> None:
    asked = model.with_structured_output(Person, method=method, strict=True, include_raw=True)
    found = asked.invoke(PERSON_QUESTION)
    assert isinstance(found["parsed"], Person), found
    parts = list(asked.stream(PERSON_QUESTION))
    assert any("parsed" in part for part in parts)


def test_json_mode(model: Any) -> None:
    """Any object: nothing makes a small model end it, so that a parsed one is not asked for."""
    asked = model.with_structured_output(method="json_mode", include_raw=True)
    assert asked.invoke(PERSON_QUESTION)["raw"].text.startswith("{")


def test_a_refusal_is_the_clients_error(model: Any) -> None:
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.BadRequestError, match="less than or equal to 2"):
        model.invoke("Hello", temperature=7)


def test_embeddings(tenora: Tenora) -> None:
    """Texts as they are: by default LangChain sends the token ids of OpenAI's own tokenizer."""
    embeddings = langchain.OpenAIEmbeddings(
        base_url=tenora.url,
        api_key=tenora.key,
        model=tenora.model,
        check_embedding_ctx_length=False,
        max_retries=0,
    )
    vectors = embeddings.embed_documents(["a kettle", "a bicycle"])
    assert [len(vector) for vector in vectors] == [HIDDEN, HIDDEN]
    again = embeddings.embed_query("a kettle")
    assert again == pytest.approx(vectors[0], abs=1e-5)  # float32, batched otherwise
    many = embeddings.embed_documents([f"text {number}" for number in range(1000)])  # one request
    assert [len(vector) for vector in many] == [HIDDEN] * 1000
