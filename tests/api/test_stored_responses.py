"""Stored responses and the conversations over them with the official `openai` client at two API
processes."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from api_harness import Api, TestTenant, running_api
from platform_fixtures import Connection
from served_api import reset, served
from stored_harness import age, allow, choose, rows_of, storing
from tenora_platform.receipts import stored_responses
from tenora_platform.receipts.sweeper import sweep
from tenora_platform.settings import Settings

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
async def plans(api: Api) -> None:
    await allow(api)


@pytest.fixture(scope="module")
async def other(
    settings: Settings, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Api]:
    """A second process over the same database."""
    async with running_api(settings, tmp_path_factory.mktemp("other")) as made:
        yield made


@pytest.fixture(scope="module")
async def urls(api: Api, other: Api) -> AsyncIterator[tuple[str, str]]:
    async with served(api) as one, served(other) as two:
        yield one, two


@pytest.fixture(autouse=True)
def fresh_engines(api: Api, other: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (api, other):
        reset(each.engine)
        monkeypatch.setattr(each.engine, "model", replace(each.engine.model, context_tokens=4096))


@pytest.fixture
async def tenant(api: Api, plans: None) -> TestTenant:
    return await storing(api)


@pytest.fixture
async def client(
    urls: tuple[str, str], tenant: TestTenant
) -> AsyncIterator[tuple[openai.AsyncOpenAI, openai.AsyncOpenAI]]:
    """The same key at both processes."""
    one, two = (openai.AsyncOpenAI(api_key=tenant.key, base_url=url, max_retries=0) for url in urls)
    async with one, two:
        yield one, two


Two = tuple[openai.AsyncOpenAI, openai.AsyncOpenAI]


async def ask(client: openai.AsyncOpenAI, **body: Any) -> Any:
    return await client.responses.create(**{"model": "fake-base", "input": "Hi", **body})


async def streamed(client: openai.AsyncOpenAI, **body: Any) -> Any:
    async with client.responses.stream(**{"model": "fake-base", "input": "Hi", **body}) as stream:
        return await stream.get_final_response()


async def refused_previous(client: openai.AsyncOpenAI, response_id: str) -> str:
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, previous_response_id=response_id)
    assert caught.value.param == "previous_response_id"
    assert caught.value.code == "previous_response_not_found"
    return str(caught.value)


@pytest.mark.parametrize("make", [ask, streamed])
async def test_it_is_there_when_its_end_is_told(client: Two, make: Any) -> None:
    one, two = client
    made = await make(
        one, instructions="Be brief.", metadata={"k": "v"}, temperature=0.5, store=True
    )
    assert (made.status, made.store, made.previous_response_id) == ("completed", True, None)
    found = await two.responses.retrieve(made.id)
    shown = found.model_dump() | {"output": [each.model_dump() for each in found.output]}
    assert shown["store_error"] is None
    whole = made.model_dump()
    for item in whole["output"]:
        for part in item["content"]:
            part.pop("parsed", None)  # the stream's accumulation has one
    assert shown == whole
    await two.responses.delete(made.id)
    for each in client:
        with pytest.raises(openai.NotFoundError):
            await each.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await each.responses.input_items.list(made.id)
        with pytest.raises(openai.NotFoundError):
            await each.responses.delete(made.id)


async def test_input_items_come_in_pages(client: Two) -> None:
    one, two = client
    given: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "Rain."},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks."},
    ]
    made = await ask(one, input=given, tools=[WEATHER])
    items: list[Any] = [
        item async for item in two.responses.input_items.list(made.id, limit=2, order="asc")
    ]
    assert [item.type for item in items] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]
    assert [item.role for item in items if item.type == "message"] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    texts = [item.content[0].text for item in items if item.type == "message"]
    assert texts == ["Be brief.", "Weather?", "It rains.", "Thanks."]
    assert len({item.id for item in items}) == len(items)
    assert {item.status for item in items} == {"completed"}
    page: Any = await two.responses.input_items.list(made.id, limit=4)
    assert [item.id for item in page.data] == [item.id for item in items[:1:-1]]
    assert (page.first_id, page.last_id, page.has_more) == (items[-1].id, items[2].id, True)
    page = await two.responses.input_items.list(made.id, after=items[1].id)
    assert ([item.id for item in page.data], page.has_more) == ([items[0].id], False)
    assert (await two.responses.input_items.list(made.id, after="msg_x")).data == []
    with pytest.raises(openai.BadRequestError):
        await two.responses.input_items.list(made.id, limit=101)


@pytest.mark.parametrize("make", [ask, streamed])
async def test_a_conversation_is_asked_as_if_it_were_sent_whole(
    api: Api, other: Api, client: Two, make: Any
) -> None:
    """Three turns at two processes; the last turn's instructions alone are shown."""

    def answer(request: Any, index: int) -> str:
        return f"{CALL} of {len(request.prompt_token_ids)}" if not said else "It rains."

    said: list[Any] = []
    api.engine.answer = other.engine.answer = answer
    one, two = client
    first = await make(one, input="Weather?", instructions="First.", tools=[WEATHER])
    calls = [item for item in first.output if item.type == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": each.call_id, "output": "Rain."}
        for each in calls
    ]
    said.append(first)
    second = await make(
        two, input=outputs, previous_response_id=first.id, tools=[WEATHER], temperature=0
    )
    more = {"instructions": "Be brief.", "tools": [WEATHER], "temperature": 0}
    third = await make(one, input="And now?", previous_response_id=second.id, **more)
    asked = api.engine.requests[-1].prompt_token_ids
    history = [
        {"role": "user", "content": "Weather?"},
        *[item.model_dump() for item in first.output],
        *outputs,
        *[item.model_dump() for item in second.output],
        {"role": "user", "content": "And now?"},
    ]
    for item in history:
        item.pop("parsed_arguments", None)
        for part in item["content"] if isinstance(item.get("content"), list) else ():
            part.pop("parsed", None)
    whole = await make(one, input=history, store=False, **more)
    assert api.engine.requests[-1].prompt_token_ids == asked
    assert third.usage.input_tokens == whole.usage.input_tokens == len(asked)
    assert third.output_text == whole.output_text
    assert third.previous_response_id == second.id
    prompt = api.engine.text.decode(asked, skip_special=False)
    assert "Be brief." in prompt
    assert "First." not in prompt
    assert (await two.responses.retrieve(third.id)).previous_response_id == second.id


async def test_without_storing_it_a_conversation_can_be_gone_on_from(client: Two) -> None:
    first = await ask(client[0])
    second = await ask(client[1], previous_response_id=first.id, store=False)
    assert (second.store, second.previous_response_id) == (False, first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert "was not stored" in await refused_previous(client[0], second.id)


async def test_their_days_end(api: Api, client: Two, tenant: TestTenant, owner: Connection) -> None:
    """Shortened, too. A conversation of which the beginning has ended is over."""
    first = await ask(client[0])
    second = await ask(client[0], previous_response_id=first.id)
    age(owner, first.id, 3)
    assert (await ask(client[1], previous_response_id=second.id)).status == "completed"
    await choose(api, tenant, stored_response_days=2)
    for each in client:
        with pytest.raises(openai.NotFoundError):
            await each.responses.retrieve(first.id)
        assert first.id in await refused_previous(each, first.id)
        assert first.id in await refused_previous(each, second.id)
    assert (await client[0].responses.retrieve(second.id)).id == second.id
    before = rows_of(owner, tenant)
    await sweep(api.state.db)
    assert rows_of(owner, tenant) == before - 1


async def test_what_has_ended_cannot_be_cancelled(client: Two) -> None:
    here, there = client
    made = await ask(here, input="x")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        await there.responses.cancel(made.id)
    assert (await there.responses.retrieve(made.id)).status == "completed"
    with pytest.raises(openai.NotFoundError):
        await here.responses.cancel("resp_never")


async def test_a_conversation_ends_where_one_is_deleted(client: Two) -> None:
    first = await ask(client[0])
    second = await ask(client[0], previous_response_id=first.id)
    third = await ask(client[0], previous_response_id=second.id)
    await client[1].responses.delete(second.id)
    assert second.id in await refused_previous(client[0], third.id)
    assert (await ask(client[0], previous_response_id=first.id)).status == "completed"


async def test_what_did_not_come_to_its_end_is_stored_so(api: Api, client: Two) -> None:
    one, two = client
    cut = await ask(one, max_output_tokens=5)
    found = await two.responses.retrieve(cut.id)
    assert (found.status, found.output_text) == ("incomplete", "Hello")
    assert found.incomplete_details is not None
    api.engine.answer = lambda request, index: "x" * 3000
    api.engine.gate = gate = asyncio.Event()
    for ends in ("failed", "incomplete"):
        gate.set()
        stream = await ask(one, stream=True)
        events = aiter(stream)
        async for event in events:
            if event.type == "response.output_text.delta":
                break
            if event.type == "response.created":
                made = event.response.id
        gate.clear()
        if ends == "failed":
            await api.engine.abort(api.engine.requests[-1].request_id)
            last = [event async for event in events][-1].response
            assert (last.status, last.store) == ("failed", True)
        else:
            await stream.close()
        found = await once_stored(two, made)
        assert found.status == ends
        assert found.output_text.startswith("x")
        assert found.output[0].status == "incomplete"
        assert (found.error is None) == (ends == "incomplete")


async def once_stored(client: openai.AsyncOpenAI, response_id: str) -> Any:
    """A client that has left is not told when."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await client.responses.retrieve(response_id)
            except openai.NotFoundError:
                await asyncio.sleep(0.01)


async def test_a_conversation_that_is_too_long_is_refused(
    api: Api, client: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the context as any prompt is, and by the bounds of what is read again."""
    first = await ask(client[0], input="x" * 3000)
    second = await ask(client[0], previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client[0], previous_response_id=second.id, input="x" * 3000)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input"
    bounds: list[tuple[dict[str, Any], str, int]] = [
        (vars(stored_responses), "TURNS_MAX", 1),
        (vars(api.state.settings), "max_body", 3500),
    ]
    for place, name, most in bounds:
        with monkeypatch.context() as patched:
            patched.setitem(place, name, most)
            with pytest.raises(openai.BadRequestError) as caught:
                await ask(client[0], previous_response_id=second.id)
            assert caught.value.code == "context_length_exceeded"
            assert caught.value.param == "previous_response_id"
    monkeypatch.setattr("tenora_platform.inference.responses.storing.MESSAGES_MAX", 4)
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client[0], previous_response_id=second.id)
    assert caught.value.param == "previous_response_id"
    assert (await ask(client[0], previous_response_id=first.id)).status == "completed"


PART = {"type": "input_text", "text": "a"}
IN_CONTENT = {"role": "user", "content": [PART] * 1500}
IN_OUTPUT = [
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [PART] * 1500},
]


@pytest.mark.parametrize("given", [[IN_CONTENT], IN_OUTPUT])
async def test_the_parts_of_a_conversation_are_bounded_before_the_work(
    client: Two, api: Api, monkeypatch: pytest.MonkeyPatch, given: list[Any]
) -> None:
    """By the bound of one body: of its own input's and of those before it."""
    monkeypatch.setattr(api.engine, "model", replace(api.engine.model, context_tokens=40_000))
    first = await ask(client[0], input=given)
    second = await ask(client[0], input=given, previous_response_id=first.id)
    assert (await ask(client[0], previous_response_id=second.id)).status == "completed"

    def unwanted(*given: Any) -> None:
        raise AssertionError("the chat is made of what is too much")

    monkeypatch.setattr("tenora_platform.inference.responses.routes.as_chat", unwanted)
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client[0], input=given, previous_response_id=second.id)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client[0], input=given * 3)
    assert caught.value.param == "input"


async def test_empty_parts_do_not_come_back(client: Two) -> None:
    empty = [{"type": "input_text", "text": ""}] * 3000
    made = await ask(client[0], input=[{"role": "user", "content": [*empty, PART]}])
    for _ in range(2):
        content: Any = [*empty, PART]
        given = [{"role": "user", "content": content}]
        made = await ask(client[0], input=given, previous_response_id=made.id)
        assert made.status == "completed"


async def test_a_chat_of_many_items_is_made_in_a_thread(
    client: Two, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    for module, name in (("responses.routes", "as_chat"), ("requests", "count_characters")):
        path = f"tenora_platform.inference.{module}"
        really = getattr(importlib.import_module(path), name)

        def noted(*given: Any, really: Any = really) -> Any:
            threads.append(threading.get_ident())
            return really(*given)

        monkeypatch.setattr(f"{path}.{name}", noted)
    await ask(client[0], input=[{"role": "user", "content": "a"}] * 300)
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    chat: Any = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 300}]
    await client[0].chat.completions.create(model="fake-base", messages=chat)
    assert len(threads) == 3
    assert threading.get_ident() not in threads
